"""What every Fold, every Accumulator and every SampleSource promises, the doubles of tests among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.policy import Weights
from rlexp.rollout.folds import (
    ADVANTAGES,
    VALUE_TARGETS,
    VF_PREDS,
    Accumulator,
    Advantages,
    EpisodeAccumulator,
    Fold,
    FragmentAccumulator,
    NStep,
)
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.gatherer import GatheredInfo
from rlexp.rollout.source import Sample, SampleSource
from rlexp.sample_batch import OBS, Array, SampleBatch
from tests.lab.doubles import ScriptedSource, StepFold, rows, without
from tests.lab.rollout import assert_same_batch
from tests.unit.rollout.test_folds import GOES_ON, TERMINATED, TRUNCATED, make_fragment, make_steps
from tests.unit.rollout.test_gatherer import gathered
from tests.unit.rollout.test_sample_sources import local, reading, remote

NUM_STEPS = 40
ENDINGS = [GOES_ON, GOES_ON, TERMINATED, GOES_ON, GOES_ON, GOES_ON, GOES_ON, TRUNCATED, GOES_ON, GOES_ON]
STEPS = [make_steps(env, list(range(NUM_STEPS)), (ENDINGS[env:] + ENDINGS[:env]) * 4) for env in range(3)]

DEPENDS_ON_THE_CUT = {ADVANTAGES, VALUE_TARGETS}
"""Columns that sum over all later steps up to the last start."""


def stream(start: int = 0, stop: int = NUM_STEPS) -> Fragment:
    fragment = make_fragment(STEPS, start, stop)
    values = np.sin(fragment.obs[..., 0])
    return replace(fragment, outputs={**fragment.outputs, VF_PREDS: values})


FOLDS: Mapping[str, Fold] = {
    "1-step": NStep(1, 0.9),
    "4-step": NStep(4, 0.9),
    "StepFold": StepFold(),
    "GAE": Advantages(0.9, 0.8, uses_gae=True, uses_critic=True),
    "returns": Advantages(0.9, 1.0, uses_gae=False, uses_critic=False),
}


@pytest.fixture(params=FOLDS.values(), ids=tuple(FOLDS))
def fold(request: pytest.FixtureRequest) -> Fold:
    found: Fold = request.param
    return found


def test_each_valid_step_starts_a_row_in_the_order_of_time(fold: Fold) -> None:
    num_starts = NUM_STEPS - fold.lookahead
    valid = stream().valid[:num_starts]
    batch = fold.rows(stream(), num_starts)
    np.testing.assert_array_equal(batch[OBS], stream().obs[:num_starts][valid])


def test_rows_need_no_step_beyond_the_lookahead_of_the_last_start(fold: Fold) -> None:
    for num_starts in (1, 7):
        short = stream(0, num_starts + fold.lookahead)
        assert_same_batch(fold.rows(short, num_starts), fold.rows(stream(), num_starts))


def test_a_fold_has_no_state(fold: Fold) -> None:
    first = fold.rows(stream(), 5)
    fold.rows(stream(10), 20)
    assert_same_batch(fold.rows(stream(), 5), first)


def test_no_starts_make_no_rows_of_the_same_columns(fold: Fold) -> None:
    nothing = replace(stream(), valid=np.zeros((NUM_STEPS, 3), bool))
    for batch in (fold.rows(stream(), 0), fold.rows(nothing, 5)):
        assert len(batch) == 0
        assert {name: column.dtype for name, column in batch.columns.items()} == {
            name: column.dtype for name, column in fold.rows(stream(), 5).columns.items()
        }


MakeAccumulator = Callable[[Fold], Accumulator]


@pytest.fixture(params=[FragmentAccumulator, lambda fold: EpisodeAccumulator(fold, 12)], ids=["fragments", "episodes"])
def make(request: pytest.FixtureRequest) -> MakeAccumulator:
    found: MakeAccumulator = request.param
    return found


def pushed(accumulator: Accumulator, start: int, stop: int) -> list[SampleBatch]:
    """Return the rows that the fragments of 4 steps from ``start`` to ``stop`` let go."""
    batches = [accumulator.push(stream(step, step + 4)) for step in range(start, stop, 4)]
    return [batch for batch in batches if batch is not None]


def reordered(batch: SampleBatch, order: Array) -> SampleBatch:
    return SampleBatch({name: column[order] for name, column in batch.columns.items()})


def test_no_row_is_lost_or_sent_twice(fold: Fold, make: MakeAccumulator) -> None:
    found = SampleBatch.concat(pushed(make(fold), 0, NUM_STEPS))
    expected = fold.rows(stream(), NUM_STEPS - fold.lookahead)
    order, expected_order = (np.argsort(batch[OBS][:, 0]) for batch in (found, expected))
    sent = np.isin(expected[OBS][expected_order][:, 0], found[OBS][:, 0])
    # Only the last steps of each env may wait.
    assert np.count_nonzero(~sent) <= 3 * 12
    assert_same_batch(
        without(reordered(found, order), *DEPENDS_ON_THE_CUT),
        without(reordered(expected, expected_order[sent]), *DEPENDS_ON_THE_CUT),
    )


@pytest.mark.parametrize("stop", range(4, 28, 4))
def test_an_accumulator_continues_from_the_state_of_another(fold: Fold, make: MakeAccumulator, stop: int) -> None:
    first, second = make(fold), make(fold)
    pushed(first, 0, stop)
    second.load(deepcopy(first.state()))
    expected, found = (pushed(each, stop, NUM_STEPS) for each in (first, second))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_same_batch(one, other)


def test_fold_without_lookahead_gets_each_fragment_as_it_was_recorded() -> None:
    fold = StepFold()
    accumulator = FragmentAccumulator(fold)
    fragments = [stream(start, start + 8) for start in range(0, NUM_STEPS, 8)]
    for fragment in fragments:
        accumulator.push(fragment)
    for found, recorded in zip(fold.streams, fragments, strict=True):
        assert np.shares_memory(found.obs, recorded.obs)
        assert found.obs.shape == recorded.obs.shape
    assert accumulator.state() == {"waiting": None}


Make = Callable[[InlineTaskPool], SampleSource]
POLLS = 3


def scripted(pool: InlineTaskPool) -> ScriptedSource:
    source = ScriptedSource()
    for value in range(9):
        source.give(rows(float(value), count=3))
    return source


@pytest.fixture(params=[local, remote, reading, gathered, scripted])
def make_source(request: pytest.FixtureRequest) -> Make:
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


def test_a_sample_is_a_batch_and_the_report_about_it(make_source: Make) -> None:
    pool = InlineTaskPool()
    samples = polled(make_source(pool))
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
def test_poll_delivers_exactly_the_wanted_batches(make_source: Make, wanted: int) -> None:
    source = make_source(InlineTaskPool())
    assert len(collected(source, wanted)) == wanted
    assert len(collected(source, 4)) == 4


@pytest.mark.parametrize("wanted", [0, -2])
def test_poll_asks_no_worker_where_nothing_is_wanted(make_source: Make, wanted: int) -> None:
    source = make_source(InlineTaskPool())
    assert [source.poll(0, wanted) for _ in range(POLLS)] == [[]] * POLLS
    assert polled(source)


@pytest.mark.parametrize(("wanted", "per_worker"), [(2, [1, 1]), (3, [1, 2]), (6, [3, 3])])
def test_poll_deals_wanted_batches_evenly(of_two_workers: SampleSource, wanted: int, per_worker: list[int]) -> None:
    workers = collected(of_two_workers, wanted)
    assert set(workers[:2]) == {0, 1}
    assert sorted(workers.count(worker) for worker in range(2)) == per_worker


def test_a_wait_ends_after_its_time(make_source: Make) -> None:
    source = make_source(InlineTaskPool())
    for _ in range(POLLS):
        started = time.monotonic()
        assert source.wait(0.1) in (True, False)
        assert time.monotonic() - started < 5.0
        source.poll(0)


def test_published_weights_reach_the_workers(make_source: Make) -> None:
    source = make_source(InlineTaskPool())
    assert source.num_weight_syncs == 0
    source.publish(3, weights(3))
    polled(source)
    assert source.num_weight_syncs > 0
    assert source.weights_wanted() in (True, False)


def test_a_source_continues_from_the_state_of_another(make_source: Make) -> None:
    pool = InlineTaskPool()
    source, other = make_source(pool), make_source(pool)
    source.publish(1, weights(1))
    polled(source)
    other.load(source.state())
    assert other.num_weight_syncs == source.num_weight_syncs > 0
    assert other.num_worker_restarts == 0


def test_events_are_reported_once(make_source: Make) -> None:
    source = make_source(InlineTaskPool())
    polled(source)
    source.drain_events()
    assert source.drain_events() == []


def test_a_stopped_source_delivers_no_new_batches_and_stops_twice(make_source: Make) -> None:
    source = make_source(InlineTaskPool())
    source.poll(0)
    source.stop()
    source.stop()
    source.poll(0)
    assert source.poll(0) == []
