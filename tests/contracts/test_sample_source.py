"""What every SampleSource promises, for all kinds of workers and for the double of tests."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from rlexp.cluster.pool import InlineTaskPool
from rlexp.policy import Weights
from rlexp.rollout.gatherer import GatheredInfo
from rlexp.rollout.source import Sample, SampleSource
from tests.doubles.scripted import ScriptedSource, rows
from tests.unit.rollout.test_gatherer import gathered
from tests.unit.rollout.test_sample_sources import local, reading, remote

Make = Callable[[InlineTaskPool], SampleSource]
POLLS = 3


def scripted(pool: InlineTaskPool) -> ScriptedSource:
    source = ScriptedSource()
    for value in range(9):
        source.give(rows(float(value), count=3))
    return source


@pytest.fixture(params=[local, remote, reading, gathered, scripted])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


@pytest.fixture(params=[local, remote, reading, gathered])
def of_two_workers(request: pytest.FixtureRequest) -> SampleSource:
    made: SampleSource = request.param(InlineTaskPool())
    return made


def polled(source: SampleSource) -> list[Sample]:
    return [sample for _ in range(POLLS) for sample in source.poll(0)]


def weights(version: int) -> Weights:
    return {"updates": np.array([version])}


def test_a_sample_is_a_batch_and_the_report_about_it(make: Make) -> None:
    pool = InlineTaskPool()
    samples = polled(make(pool))
    assert len(samples) >= 2
    for sample in samples:
        assert sample.info.num_rows > 0
        if not isinstance(sample.info, GatheredInfo):  # its rows are stored
            assert pool.get(sample.batch, 1.0).count == sample.info.num_rows
        assert sample.info.num_env_steps >= sample.info.num_rows
        assert not sample.info.episodes.returns.size


def collected(source: SampleSource, wanted: int) -> list[int]:
    """Return the workers of the batches that come while ``wanted`` are wanted, and a few polls later."""
    workers: list[int] = []
    for _ in range(2 * wanted + POLLS):
        workers += [sample.info.worker_index for sample in source.poll(0, wanted - len(workers))]
    return workers


@pytest.mark.parametrize("wanted", [1, 2, 3, 5])
def test_poll_delivers_exactly_the_wanted_batches(make: Make, wanted: int) -> None:
    source = make(InlineTaskPool())
    assert len(collected(source, wanted)) == wanted
    assert len(collected(source, 4)) == 4


@pytest.mark.parametrize("wanted", [0, -2])
def test_poll_asks_no_worker_where_nothing_is_wanted(make: Make, wanted: int) -> None:
    source = make(InlineTaskPool())
    assert [source.poll(0, wanted) for _ in range(POLLS)] == [[]] * POLLS
    assert polled(source)


@pytest.mark.parametrize(("wanted", "per_worker"), [(2, [1, 1]), (3, [1, 2]), (6, [3, 3])])
def test_poll_deals_wanted_batches_evenly(of_two_workers: SampleSource, wanted: int, per_worker: list[int]) -> None:
    workers = collected(of_two_workers, wanted)
    assert set(workers[:2]) == {0, 1}
    assert sorted(workers.count(worker) for worker in range(2)) == per_worker


def test_a_wait_ends_after_its_time(make: Make) -> None:
    source = make(InlineTaskPool())
    for _ in range(POLLS):
        started = time.monotonic()
        assert source.wait(0.1) in (True, False)
        assert time.monotonic() - started < 5.0
        source.poll(0)


def test_published_weights_reach_the_workers(make: Make) -> None:
    source = make(InlineTaskPool())
    assert source.num_weight_syncs == 0
    source.publish(3, weights(3))
    polled(source)
    assert source.num_weight_syncs > 0
    assert source.weights_wanted() in (True, False)


def test_a_source_continues_from_the_state_of_another(make: Make) -> None:
    pool = InlineTaskPool()
    source, other = make(pool), make(pool)
    source.publish(1, weights(1))
    polled(source)
    other.load(source.state())
    assert other.num_weight_syncs == source.num_weight_syncs > 0
    assert other.num_worker_restarts == 0


def test_events_are_reported_once(make: Make) -> None:
    source = make(InlineTaskPool())
    polled(source)
    source.drain_events()
    assert source.drain_events() == []


def test_a_stopped_source_delivers_no_new_batches_and_stops_twice(make: Make) -> None:
    source = make(InlineTaskPool())
    source.poll(0)
    source.stop()
    source.stop()
    source.poll(0)
    assert source.poll(0) == []
