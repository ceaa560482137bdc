"""Where samples come from: the fleet's queues and turns, and who is given which weights when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from rlexp.cluster.pool.pool import Actor, Completed, InlineTaskPool, Lane, Ref
from rlexp.errors import TrialError
from rlexp.policy import Weights
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.shared_weights import SharedWeights, WeightsHandle
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.worker import RolloutWorker, SamplingWorker
from tests.lab.doubles import HeldPool, RaisingPool, StepPolicy
from tests.lab.envs import ENDLESS_ENV
from tests.lab.rollout import fleet_of, read_here, spec_of, whole

R = TypeVar("R")
FRAGMENT_LENGTH = 10


class RecordingPool(HeldPool):
    """Runs every call at once, and remembers what was put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.values_put: list[object] = []

    def put(self, value: R) -> Ref[R]:
        self.values_put.append(value)
        return super().put(value)

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        super().start(lane, actor, method, args)
        self.let_run()

    def versions(self) -> list[int]:
        """Return which weights were sent, to any worker."""
        return [version for version, _ in self.made("set_weights")]

    def clocks(self) -> list[int]:
        """Return the clock that each fragment was asked for with."""
        return [clock for (clock,) in self.made("sample")]


class FailingUpdatesPool(RaisingPool):
    """An inline pool whose workers fail to take weights, which shows where the result is asked for."""

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if method is SamplingWorker.set_weights:
            lane.deliver(Completed(actor, (Ref(MemoryError("no room for weights")),)))
        else:
            super().start(lane, actor, method, args)


def make_worker(index: int, weights: WeightsHandle | None = None) -> RolloutWorker:
    spec = spec_of(ENDLESS_ENV, StepPolicy, num_envs=1, fragment_length=FRAGMENT_LENGTH)
    return RolloutWorker(replace(spec, index=index, weights=weights))


def remote(
    pool: InlineTaskPool, num_workers: int = 2, queue_depth: int = 2, max_weight_sync_delay: int = 1
) -> RemoteWorkers:
    workers: list[Actor[RolloutWorker]] = [Actor(f"worker-{index}", make_worker(index)) for index in range(num_workers)]
    return RemoteWorkers(pool, fleet_of(pool, workers), queue_depth, max_weight_sync_delay)


def reading(pool: InlineTaskPool) -> RemoteWorkers:
    """Return a source whose workers read weights from shared memory."""
    shared = SharedWeights(num_readers=2, max_delay=1)
    workers = [make_worker(index, read_here(shared.reader(index))) for index in range(2)]
    return RemoteWorkers(pool, fleet_of(pool, [Actor("worker", each) for each in workers]), 2, 1, shared)


def local(pool: InlineTaskPool) -> LocalWorkers:
    return LocalWorkers(pool, [make_worker(index) for index in range(2)])


def weights(version: int) -> Weights:
    return {"layer": np.full(3, version)}


@pytest.fixture
def pool() -> RecordingPool:
    return RecordingPool()


@pytest.fixture(params=[remote, local])
def source(request: pytest.FixtureRequest, pool: RecordingPool) -> SampleSource:
    made: SampleSource = request.param(pool)
    return made


def poll_versions(source: SampleSource, polls: int) -> list[int]:
    return [sample.info.weights_version for _ in range(polls) for sample in source.poll(0)]


def test_a_source_gives_published_weights_to_every_worker(source: SampleSource) -> None:
    source.publish(3, weights(3))
    assert set(poll_versions(source, 3)) == {3}
    assert source.num_weight_syncs == 2
    source.publish(9, weights(9))
    assert poll_versions(source, 5)[-2:] == [9, 9]
    assert source.num_weight_syncs == 4


def test_a_fleet_delivers_each_batch_once_in_the_order_sampled(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=1, queue_depth=3)
    batches = [whole(pool.get(sample.batch, 1.0)) for _ in range(4) for sample in source.poll(0)]
    first_steps = [int(batch["obs"][0, 2]) for batch in batches]
    assert first_steps == [call * FRAGMENT_LENGTH for call in range(9)]


@pytest.mark.parametrize("queue_depth", [1, 2, 5])
def test_a_fleet_keeps_as_many_calls_in_flight_as_its_queue_is_deep(pool: RecordingPool, queue_depth: int) -> None:
    source = remote(pool, num_workers=3, queue_depth=queue_depth)
    counts = [len(source.poll(0)) for _ in range(3)]
    assert counts == [0, 3 * queue_depth, 3 * queue_depth]
    assert len(pool.clocks()) == 3 * 3 * queue_depth


def test_a_fleet_asks_for_no_more_while_its_workers_are_busy() -> None:
    pool = HeldPool()
    source = remote(pool, num_workers=2, queue_depth=3)
    for _ in range(4):
        assert source.poll(0) == []
    assert len(pool.made("sample")) == 6
    pool.let_run(1)
    assert [sample.info.worker_index for sample in source.poll(0)] == [0]
    assert len(pool.made("sample")) == 7
    assert pool.calls[-1][0].name == "worker-0"


def asked(pool: HeldPool) -> list[str]:
    return [actor.name.removeprefix("worker-") for actor, method, _ in pool.calls if method == "sample"]


def test_fleet_asks_each_worker_once_before_it_asks_one_twice() -> None:
    pool = HeldPool()
    source = remote(pool, num_workers=3, queue_depth=2)
    source.poll(0, 5)
    assert asked(pool) == ["0", "1", "2", "0", "1"]


def test_fleet_has_no_more_calls_in_flight_than_wanted() -> None:
    pool = HeldPool()
    source = remote(pool, num_workers=3, queue_depth=4)
    for _ in range(3):
        assert source.poll(0, 4) == []
    assert len(asked(pool)) == 4
    pool.let_run(2)
    assert len(source.poll(0, 4)) == 2
    assert len(asked(pool)) == 4
    source.poll(0, 3)
    assert len(asked(pool)) == 5
    assert source.poll(0, 1) == []
    assert len(asked(pool)) == 5
    pool.let_run()
    assert len(source.poll(0, 3)) == 3
    assert source.poll(0, 0) == []
    assert len(asked(pool)) == 5


def test_fleet_begins_a_round_with_the_worker_asked_longest_ago() -> None:
    pool = HeldPool()
    source = remote(pool, num_workers=3, queue_depth=1)
    for _ in range(3):
        source.poll(0, 1)
        pool.let_run()
        assert len(source.poll(0, 1)) == 1
    assert asked(pool) == ["0", "1", "2"]


def test_weights_without_delay_precede_each_workers_next_call() -> None:
    pool = HeldPool()
    source = remote(pool, num_workers=2, queue_depth=2, max_weight_sync_delay=0)
    versions = []
    for version in range(4):
        assert source.weights_wanted()
        source.publish(version, weights(version))
        collected = 0
        for _ in range(6):
            samples = source.poll(0, 3 - collected)
            pool.let_run()
            collected += len(samples)
            versions += [sample.info.weights_version for sample in samples]
    assert versions == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert source.num_weight_syncs == 4 * 2


def test_a_fleet_tells_its_workers_the_clock_with_what_it_has_just_received(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=2, queue_depth=1)
    source.poll(1000)
    source.poll(1000)
    assert pool.clocks() == [1000, 1000, 1000 + 2 * FRAGMENT_LENGTH, 1000 + 2 * FRAGMENT_LENGTH]


def test_a_fleet_puts_each_version_once_for_all_workers(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=5)
    for version in (1, 2, 3):
        source.publish(version, weights(version))
        source.poll(0)
        source.poll(0)
    assert [value["layer"][0] for value in pool.values_put if isinstance(value, dict)] == [1, 2, 3]


def test_a_fleet_never_gives_a_worker_the_same_version_twice(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=2)
    source.publish(1, weights(1))
    for _ in range(5):
        source.poll(0)
    assert pool.versions() == [1, 1]
    assert len({worker for worker, method, _ in pool.calls if method == "set_weights"}) == 2
    assert source.num_weight_syncs == 2


def test_newer_weights_wait_until_a_worker_has_sampled_its_delay(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=1, queue_depth=1, max_weight_sync_delay=3 * FRAGMENT_LENGTH)
    source.publish(1, weights(1))
    given = []
    for version in range(2, 10):
        source.poll(0)
        given.append(pool.versions()[-1])
        source.publish(version, weights(version))
    # The first weights at once; then, each time, the newest after three fragments.
    assert given == [1, 1, 1, 4, 4, 4, 7, 7]


def test_worker_that_fails_to_take_weights_is_replaced() -> None:
    source = remote(FailingUpdatesPool(), num_workers=1)
    source.publish(1, weights(1))
    source.poll(0)
    with pytest.raises(TrialError, match="every rollout worker was removed; the last one failed: no room for weights"):
        source.poll(0)


def test_the_delay_counts_for_each_worker_by_itself(pool: RecordingPool) -> None:
    source = remote(pool, num_workers=2, queue_depth=1, max_weight_sync_delay=2 * FRAGMENT_LENGTH)
    source.publish(1, weights(1))
    for _ in range(2):
        source.poll(0)
    assert not source.weights_wanted()
    source.poll(0)
    assert source.weights_wanted()
    source.publish(2, weights(2))
    source.poll(0)
    assert not source.weights_wanted()
    assert pool.versions() == [1, 1, 2, 2]
