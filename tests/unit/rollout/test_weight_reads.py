"""Workers that read weights from shared memory instead of being sent them, and send several fragments at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlexp.cluster.pool.pool import Actor
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.folds import NStep
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.worker import EACH_ALONE, MessageLimits, RolloutWorker, WorkerSpec
from rlexp.sample_batch import SampleBatch
from tests.lab.doubles import CountingPolicy, HeldPool, RememberedPolicies, StepPolicy, VersionPolicy
from tests.lab.envs import COUNTING_ENV
from tests.lab.rollout import assert_same_batch, fleet_of, read_here, spec_of, whole

STEPS = 10
"""Env steps of a fragment."""
DELAY = 2 * STEPS
TOGETHER = MessageLimits(num_fragments=3, num_bytes=10**9, seconds=1e9)


def weights(version: int) -> Weights:
    return {"version": np.array(float(version))}


@pytest.fixture
def shared() -> Iterator[SharedWeights]:
    made = SharedWeights(num_readers=2, max_delay=DELAY)
    yield made
    made.close()


def spec(shared: SharedWeights | None, message: MessageLimits = EACH_ALONE, **rollout: Any) -> WorkerSpec:
    made = spec_of(COUNTING_ENV, CountingPolicy, num_envs=2, fragment_length=STEPS // 2, **rollout)
    return replace(made, weights=None if shared is None else read_here(shared.reader(0)), message=message)


def versions(worker: RolloutWorker, calls: int) -> list[tuple[int, int | None]]:
    infos = [worker.sample(0)[1] for _ in range(calls)]
    return [(info.weights_version, info.num_weight_reads) for info in infos]


def test_worker_reads_weights_when_it_is_due(shared: SharedWeights) -> None:
    worker = RolloutWorker(spec(shared))
    shared.publish(1, weights(1))
    assert versions(worker, 1) == [(1, 1)]
    shared.publish(2, weights(2))
    sampled = 0
    read_after = None
    for _ in range(6):
        info = worker.sample(0)[1]
        if info.weights_version == 2 and read_after is None:
            read_after = sampled
        sampled += info.num_env_steps
    assert read_after is not None
    first = STEPS  # its own steps before the second publication: a fragment without resets has STEPS of them
    assert DELAY - first - 2 <= read_after <= DELAY
    assert shared.is_wanted  # it has sampled long enough since


def test_worker_ignores_sent_weights_that_are_older_than_those_read(shared: SharedWeights) -> None:
    worker = RolloutWorker(spec(shared))
    worker.set_weights(0, weights(0))
    shared.publish(5, weights(5))
    assert versions(worker, 5)[-1] == (5, 0)
    worker.set_weights(4, weights(4))  # a CountingPolicy would refuse them
    assert versions(worker, 1) == [(5, 0)]
    worker.set_weights(6, weights(6))
    assert versions(worker, 1) == [(6, 0)]


def test_worker_that_cannot_reach_the_memory_is_sent_weights(shared: SharedWeights) -> None:
    handle = read_here(shared.reader(0))
    elsewhere = replace(handle, segment=replace(handle.segment, name="rlexp-elsewhere"))
    worker = RolloutWorker(replace(spec(shared, TOGETHER), weights=elsewhere))
    shared.publish(5, weights(5))
    assert versions(worker, 1) == [(0, None)]
    worker.set_weights(3, weights(3))
    assert versions(worker, 1) == [(3, None)]
    assert worker.sample(0)[1].num_env_steps <= STEPS, "its weights wait for the end of a call"


def test_reading_ahead_takes_weights_for_the_fragment_after_the_one_in_progress(shared: SharedWeights) -> None:
    worker = RolloutWorker(replace(spec(shared, sample_async=True), make_policy=VersionPolicy))
    shared.publish(1, weights(1))
    assert [version for version, _ in versions(worker, 3)] == [1, 1, 1]
    shared.publish(2, weights(2))
    assert [version for version, _ in versions(worker, 5)][-1] == 2
    worker.stop()


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("observation_filter", [False, True])
def test_fragments_together_have_the_rows_and_reports_of_each_alone(
    shared: SharedWeights, batch_mode: str, observation_filter: bool
) -> None:
    moments = Moments.none((3,)) if observation_filter else None
    make = partial(spec_of, COUNTING_ENV, StepPolicy, num_envs=2, fold=NStep(3, 0.9), fragment_length=STEPS // 2)
    alone = make(batch_mode=batch_mode, observation_filter=moments)
    together = replace(alone, weights=read_here(shared.reader(0)), message=TOGETHER)
    one, several = RolloutWorker(alone), RolloutWorker(together)
    parts = [one.sample(0) for _ in range(6)]
    messages = [several.sample(0) for _ in range(2)]
    expected, found = (SampleBatch.concat([whole(rows) for rows, _ in sent]) for sent in (parts, messages))
    assert_same_batch(found, expected)
    for index, (_, info) in enumerate(messages):
        mine = [part for _, part in parts[3 * index : 3 * index + 3]]
        assert info.num_rows == sum(each.num_rows for each in mine)
        assert info.num_env_steps == sum(each.num_env_steps for each in mine)
        returns = np.concatenate([each.episodes.returns for each in mine])
        np.testing.assert_array_equal(info.episodes.returns, returns)
        if info.observed is not None:
            assert info.observed.count == sum(each.observed.count for each in mine if each.observed is not None)
        assert (info.observed is None) == (moments is None)
        assert info.num_weight_reads == 0


def test_clock_goes_on_between_fragments_that_go_together(shared: SharedWeights) -> None:
    policies = RememberedPolicies(CountingPolicy)
    worker = RolloutWorker(replace(spec(shared, TOGETHER), make_policy=policies))
    info = worker.sample(1000)[1]
    clocks = policies.clocks()
    assert clocks == sorted(clocks)
    assert clocks[0] == 1000
    assert 1000 + info.num_env_steps - STEPS <= clocks[-1] <= 1000 + info.num_env_steps


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (MessageLimits(4, 10**9, 1e9), 4),
        (MessageLimits(4, 3 * 800 - 1, 1e9), 2),
        (MessageLimits(4, 3 * 800, 1e9), 3),
        (MessageLimits(4, 10**9, 0.0), 1),
        (MessageLimits(4, 0, 1e9), 1),
        (EACH_ALONE, 1),
    ],
)
def test_message_limits(limits: MessageLimits, expected: int) -> None:
    num_fragments = 1
    while limits.have_room(num_fragments, 800 * num_fragments, 0.001 * num_fragments):
        num_fragments += 1
    assert num_fragments == expected


class Scene:
    """Two workers of a held pool; the second one cannot reach the shared memory."""

    def __init__(self, shared: SharedWeights) -> None:
        self.pool = HeldPool()
        specs = [spec(shared), replace(spec(None), index=1)]
        self.workers: list[Actor[RolloutWorker]] = [
            Actor(f"worker-{each.index}", RolloutWorker(each)) for each in specs
        ]
        self.source = RemoteWorkers(self.pool, fleet_of(self.pool, self.workers), 1, DELAY, shared)

    def polls(self, count: int) -> list[tuple[int, int]]:
        """Poll so often, and run every call in between; return worker and version of each sample."""
        found = []
        for _ in range(count):
            found += [(each.info.worker_index, each.info.weights_version) for each in self.source.poll(0)]
            self.pool.let_run()
        return found

    def sent(self, index: int) -> list[int]:
        return [args[0] for args in self.pool.made("set_weights", self.workers[index])]


def test_source_sends_weights_only_to_workers_that_do_not_read_them_and_counts_both(shared: SharedWeights) -> None:
    scene, seen = Scene(shared), list[tuple[int, int]]()
    for version in range(12):
        scene.source.publish(version, weights(version))
        seen += scene.polls(2)
    seen += scene.polls(2)
    assert scene.sent(0) == [0]
    assert scene.sent(1)[0] == 0
    assert len(scene.sent(1)) > 3
    last = dict(seen)
    assert last[0] >= 10
    assert last[1] >= 8
    num_read = len({used for worker, used in seen if worker == 0}) - 1
    assert num_read > 3
    assert scene.source.num_weight_syncs == len(scene.sent(0)) + len(scene.sent(1)) + num_read


def test_weights_are_wanted_by_a_worker_that_reads_them(shared: SharedWeights) -> None:
    pool = HeldPool()
    worker: Actor[RolloutWorker] = Actor("worker-0", RolloutWorker(spec(shared)))
    source = RemoteWorkers(pool, fleet_of(pool, [worker]), 1, DELAY, shared)
    source.publish(0, weights(0))
    wanted = []
    for _ in range(8):
        source.poll(0)
        pool.let_run()
        wanted.append(source.weights_wanted())
    assert not wanted[0]
    assert wanted[-1]
    source.publish(1, weights(1))
    assert not source.weights_wanted()


def test_stopped_source_closes_the_memory(shared: SharedWeights) -> None:
    scene = Scene(shared)
    scene.source.stop()
    scene.source.stop()
    with pytest.raises(ValueError, match="closed"):
        shared.publish(0, weights(0))
