"""Gatherers: what they store, in which order, how often, and what becomes of shards and gatherers that are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlexp.agents.apex.gatherers import groups_of, renewed
from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.cluster.pool.pool import Actor, ActorLostError, Completed, InlineTaskPool, Lane, Ref, Resources, TaskPool
from rlexp.errors import TrialError
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.fragment import join_rows
from rlexp.rollout.gatherer import GatheredInfo, GatheredWorkers, Gatherer, GathererConfig, GathererSpec
from rlexp.sample_batch import FRAME_IDS, NEW_OBS, OBS, FrameRows, SampleBatch, SentRows, WrittenRows
from tests.lab.doubles import CountingPolicy, RaisingPool, StepPolicy
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV
from tests.lab.rollout import spec_of, stacked_rows

FRAGMENT = 10
NOTHING_RESERVED = Resources(0, 0)
CONFIG = GathererConfig(
    limits=FleetLimits(max_restarts=5, sample_timeout_s=60.0),
    queue_depth=2,
    max_weight_sync_delay=1,
    joined_rows=3 * FRAGMENT,
    reported_rows=6 * FRAGMENT,
    longest_wait_s=1000.0,
    store_depth=2,
)


class Shelf:
    """Keeps the batches that it is given, as a replay shard would."""

    def __init__(self) -> None:
        self.batches: list[SampleBatch] = []

    def add_batch(self, sent: SentRows) -> int:
        assert isinstance(sent, SampleBatch)
        self.batches.append(sent)
        return sent.count


class StorePool(RaisingPool):
    """An inline pool in which the stores of some shards are held back or fail."""

    def __init__(self) -> None:
        self.held: set[Any] = set()
        self.lost: set[Any] = set()
        self.fails: dict[int, Exception] = {}
        """How the calls of a worker end, by its index, until it is replaced."""
        self.removed: list[str] = []
        self._waiting: list[Callable[[], None]] = []

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        start = super().start
        index = int(actor.name.rpartition("-")[2])
        if actor.handle in self.lost:
            lane.deliver(Completed(actor, (Ref(ActorLostError("its process died")),)))
        elif actor.handle in self.held:
            self._waiting.append(lambda: start(lane, actor, method, args))
        elif method.__name__ == "sample" and index in self.fails:
            lane.deliver(Completed(actor, (Ref("rows"), Ref(self.fails[index]))))
        else:
            start(lane, actor, method, args)

    def remove(self, actor: Actor[Any]) -> None:
        self.removed.append(actor.name)
        self.fails.pop(int(actor.name.rpartition("-")[2]), None)

    def let_run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.held.clear()
        for run in waiting:
            run()


def spec_for(
    pool: TaskPool,
    indices: tuple[int, ...] = (4, 7),
    attempt: int = 0,
    observation_filter: Moments | None = None,
    **changes: Any,
) -> GathererSpec:
    worker = spec_of(ENDLESS_ENV, StepPolicy, 1, fragment_length=FRAGMENT, observation_filter=observation_filter)
    workers = tuple((replace(worker, index=index), NOTHING_RESERVED) for index in indices)
    return GathererSpec(0, attempt, 3, workers, renewed, lambda: pool, replace(CONFIG, **changes))


class Bench:
    """A gatherer in this process, its shards, and a clock that moves a little whenever it is read."""

    def __init__(self, observation_filter: Moments | None = None, **changes: Any) -> None:
        self.now_s = 0.0
        self.pool = StorePool()
        spec = spec_for(self.pool, observation_filter=observation_filter, **changes)
        self.gatherer = Gatherer(spec, self.clock)
        self.shelves = [Shelf(), Shelf()]
        for index, shelf in enumerate(self.shelves):
            self.gatherer.set_shard(index, Actor(f"replay-{index}", shelf))
        self.gatherer.set_weights(0, {"layer": np.zeros(3)})

    def clock(self) -> float:
        self.now_s += 0.1
        return self.now_s

    @property
    def batches(self) -> list[SampleBatch]:
        """What all shards have stored."""
        return [batch for shelf in self.shelves for batch in shelf.batches]

    def sample(self) -> GatheredInfo:
        return self.gatherer.sample(0)[1]

    def steps_of(self, worker: int) -> list[int]:
        """Return the steps of one worker's env in the order in which they are stored, by the order of batches."""
        env_id = self.env_ids()[worker]
        rows = np.concatenate([batch[OBS] for batch in self.batches])
        return sorted(rows[rows[:, 0] == env_id][:, 2].astype(int).tolist())

    def env_ids(self) -> list[float]:
        return sorted({float(row) for batch in self.batches for row in batch[OBS][:, 0]})

    def num_stored(self) -> int:
        return sum(batch.count for batch in self.batches)


def test_gatherer_stores_each_row_once_and_reports_as_many() -> None:
    bench = Bench()
    reports = [bench.sample() for _ in range(5)]
    assert sum(info.num_rows for info in reports) == sum(info.num_env_steps for info in reports) == bench.num_stored()
    assert min(info.num_rows for info in reports) >= CONFIG.reported_rows
    for worker in range(2):
        steps = bench.steps_of(worker)
        assert steps == list(range(len(steps)))
    assert {index for info in reports for index in info.fed} == {0, 1}
    assert min(batch.count for batch in bench.batches) >= CONFIG.joined_rows


def test_rows_of_one_worker_keep_their_order_in_a_batch() -> None:
    bench = Bench()
    for _ in range(3):
        bench.sample()
    for batch in bench.batches:
        for env_id in bench.env_ids():
            steps = batch[OBS][batch[OBS][:, 0] == env_id][:, 2]
            assert (np.diff(steps) == 1).all()


def test_the_choice_of_shards_is_seeded() -> None:
    fed = []
    for _ in range(2):
        bench = Bench()
        fed.append([bench.sample().fed for _ in range(4)])
    assert fed[0] == fed[1]


def test_a_report_comes_after_its_time_with_what_there_is() -> None:
    bench = Bench(longest_wait_s=10.0, joined_rows=10**6, reported_rows=10**6)
    info = bench.sample()
    assert 0 < info.num_rows == bench.num_stored() < 10**6


def test_a_report_comes_although_no_worker_delivers() -> None:
    bench = Bench(longest_wait_s=10.0)
    bench.pool.held |= {actor.handle for actor in bench.gatherer._source._fleet}
    info = bench.sample()
    assert (info.num_rows, info.num_env_steps, info.fed) == (0, 0, ())
    assert info.gathered.num_fragments_held == 4


def test_published_weights_reach_every_worker() -> None:
    bench = Bench()
    bench.sample()
    bench.gatherer.set_weights(9, {"layer": np.full(3, 9)})
    bench.sample()
    assert bench.sample().weights_version == 9


def test_slow_shard_gets_no_more_than_its_depth_and_holds_no_other_up() -> None:
    bench = Bench()
    bench.pool.held.add(bench.shelves[0])
    for _ in range(10):
        bench.sample()
    assert len(bench.pool._waiting) == CONFIG.store_depth
    assert len(bench.shelves[1].batches) > 10
    bench.pool.let_run()
    assert len(bench.shelves[0].batches) == CONFIG.store_depth


def test_no_more_is_sampled_while_no_shard_has_room() -> None:
    bench = Bench(longest_wait_s=10.0)
    bench.pool.held |= set(bench.shelves)
    reports = [bench.sample() for _ in range(8)]
    assert [info.num_env_steps for info in reports[-3:]] == [0, 0, 0]
    most = CONFIG.joined_rows + 4 * FRAGMENT
    assert sum(info.num_rows for info in reports) <= 2 * CONFIG.store_depth * most
    bench.pool.let_run()
    assert bench.num_stored() == sum(info.num_rows for info in reports)
    assert bench.sample().num_rows > 0


def test_what_a_lost_shard_did_not_take_is_counted_and_its_replacement_gets_rows() -> None:
    bench = Bench()
    lost = bench.shelves[0]
    bench.pool.lost.add(lost)
    reports = [bench.sample() for _ in range(6)]
    assert sum(info.num_fragments_lost for info in reports) >= CONFIG.joined_rows // FRAGMENT
    assert lost.batches == []
    bench.shelves[0] = Shelf()
    bench.gatherer.set_shard(0, Actor("replay-0", bench.shelves[0]))
    for _ in range(6):
        assert bench.sample().num_fragments_lost == 0
    assert bench.shelves[0].batches


def test_what_a_shard_had_not_taken_when_it_was_replaced_is_counted() -> None:
    bench = Bench()
    bench.pool.held.add(bench.shelves[0])
    for _ in range(4):
        assert bench.sample().num_fragments_lost == 0
    bench.gatherer.set_shard(0, Actor("replay-0", Shelf()))
    assert bench.sample().num_fragments_lost >= CONFIG.store_depth


def test_worker_that_fails_is_replaced_and_named_by_its_own_index() -> None:
    bench = Bench()
    bench.sample()
    bench.pool.fails[7] = ActorLostError("its process died")
    reports = [bench.sample() for _ in range(3)]
    assert bench.pool.removed == ["worker-7"]
    assert sum(info.gathered.num_worker_restarts for info in reports) == 1
    events = [event for info in reports for event in info.gathered.events]
    assert len(events) == 1
    assert "worker 7 failed: its process died" in events[0]


def test_what_each_worker_observed_is_reported_by_its_index() -> None:
    info = Bench(observation_filter=Moments.none((3,))).sample()
    assert set(info.gathered.observed) == {4, 7}
    assert sum(moments.count for moments in info.gathered.observed.values()) >= info.num_env_steps


def frame_rows(first: int, count: int) -> FrameRows:
    """Return rows of stacks of two frames, of which the frame of number n is filled with n."""
    numbers = np.arange(first, first + count + 2)
    frames = np.broadcast_to(numbers[:, None, None, None], (count + 2, 4, 4, 1)).astype(np.uint8)
    return stacked_rows(first, frames, {})


def test_frames_that_several_fragments_have_are_sent_once() -> None:
    parts = [frame_rows(10, 5), frame_rows(60, 3), frame_rows(15, 4)]
    joined = join_rows(parts)
    assert isinstance(joined, FrameRows)
    expected = SampleBatch.concat([part.stacks() for part in parts])
    for name in (OBS, NEW_OBS):
        np.testing.assert_array_equal(joined.stacks()[name], expected[name])
    assert joined.rows[FRAME_IDS].dtype == np.int32
    assert sorted(joined.numbers.tolist()) == [*range(10, 21), *range(60, 65)]
    assert join_rows(parts[:1]) is parts[0]


def test_rows_of_different_kinds_are_not_joined() -> None:
    written = WrittenRows(0, 0, 0, 1, (), False)
    kinds: list[list[SentRows]] = [[frame_rows(0, 2), SampleBatch({OBS: np.zeros(2)})], [written, written]]
    for parts in kinds:
        with pytest.raises(ValueError, match="cannot be joined"):
            join_rows(parts)


class Driver:
    """The driver's side: a source over two gatherers of ``workers_each`` workers, in this process."""

    def __init__(self, pool: InlineTaskPool, workers_each: int, **changes: Any) -> None:
        self.inner_pools: list[StorePool] = []
        self._pool = pool
        self._workers_each = workers_each
        self._changes = changes
        limits = FleetLimits(max_restarts=5, sample_timeout_s=60.0)
        fleet = Fleet(pool, self.place, 2, limits, name_of="gatherer {}".format)
        self.source = GatheredWorkers(pool, fleet, max_weight_sync_delay=1)
        self.shelves = [Shelf(), Shelf()]
        for index, shelf in enumerate(self.shelves):
            self.source.set_shard(index, Actor(f"replay-{index}", shelf))

    def place(self, index: int, attempt: int) -> Actor[Any]:
        self.inner_pools.append(StorePool())
        first = index * self._workers_each
        indices = tuple(range(first, first + self._workers_each))
        spec = spec_for(self.inner_pools[-1], indices, attempt, **self._changes)
        return self._pool.place(f"gatherer-{index}", NOTHING_RESERVED, Gatherer, replace(spec, index=index))

    def infos(self, polls: int) -> list[Any]:
        return [sample.info for _ in range(polls) for sample in self.source.poll(0)]


def gathered(pool: InlineTaskPool) -> GatheredWorkers:
    """Return a source over two gatherers of one worker each; the numbers of both are those of the workers."""
    return Driver(pool, 1, joined_rows=1, reported_rows=1).source


def test_rows_of_all_gatherers_are_stored_and_counted_once() -> None:
    driver = Driver(StorePool(), 2)
    infos = driver.infos(4)
    reported = sum(info.num_rows for info in infos)
    in_flight = driver.infos(1)  # asked for by the last poll: they are stored, and come with the next one
    stored = sum(batch.count for shelf in driver.shelves for batch in shelf.batches)
    waiting = stored - reported - sum(info.num_rows for info in in_flight)
    assert reported > 0
    assert waiting == sum(info.num_rows for info in driver.infos(1))


def test_gatherer_that_dies_is_replaced_with_its_workers_and_what_it_held_is_counted() -> None:
    pool = StorePool()
    driver = Driver(pool, 2)
    driver.infos(3)
    pool.fails[1] = ActorLostError("its process died")
    infos = driver.infos(4)
    assert pool.removed == ["gatherer-1"]
    assert driver.source.num_worker_restarts == 1
    events = driver.source.drain_events()
    assert len(events) == 1
    assert "gatherer 1 failed: its process died" in events[0]
    assert sum(info.num_fragments_lost for info in infos) > 0
    before = [len(shelf.batches) for shelf in driver.shelves]
    driver.infos(4)
    assert all(len(shelf.batches) > count for shelf, count in zip(driver.shelves, before, strict=True))


def test_restarts_and_events_of_the_workers_come_through() -> None:
    driver = Driver(StorePool(), 2)
    driver.infos(3)
    driver.inner_pools[1].fails[3] = ActorLostError("its process died")
    driver.infos(4)
    assert driver.source.num_worker_restarts == 1
    assert ["worker 3 failed: its process died" in event for event in driver.source.drain_events()] == [True]
    assert driver.source.drain_events() == []


def test_what_ends_all_workers_of_a_gatherer_is_raised_at_once() -> None:
    pool = StorePool()
    driver = Driver(pool, 2)
    driver.infos(2)
    pool.fails[0] = TrialError("the env fails")
    with pytest.raises(TrialError, match="the env fails"):
        driver.infos(3)


def test_a_replacement_explores_by_streams_of_its_own() -> None:
    exploration = PolicyExploration(ConstantEpsilon((0.1,)), 5, 1)
    spec = spec_of(COUNTING_ENV, partial(CountingPolicy, exploration))
    first, second = renewed(spec, 1), renewed(spec, 2)
    seeds = {spec.seed, first.seed, second.seed}
    explorations = [each.make_policy.args[0] for each in (spec, first, second)]  # type: ignore[attr-defined]
    assert len(seeds) == len({each.seed for each in explorations}) == 3
    assert {each.epsilon for each in explorations} == {exploration.epsilon}
    assert renewed(spec_of(COUNTING_ENV, StepPolicy), 1).make_policy is StepPolicy


@pytest.mark.parametrize(
    ("setting", "nodes", "driver", "sizes"),
    [
        ("auto", [""] * 128, "", []),
        ("auto", [""] * 129, "", [43, 43, 43]),
        ("auto", ["a"] * 4, "a", []),
        ("auto", ["a"] * 4, "b", [4]),
        ("auto", ["a", "b", "a", "c"], "a", [2, 1, 1]),
        ("auto", ["a", "a", "", ""], "a", []),
        (0, ["a", "b"], "a", []),
        (1, ["a", "b"], "a", [2]),
        (3, ["a"] * 7, "a", [2, 3, 2]),
        (5, ["a"] * 2, "a", [1, 1]),
    ],
)
def test_groups_of_workers(setting: int | str, nodes: list[str], driver: str, sizes: list[int]) -> None:
    groups = groups_of(setting, nodes, driver)
    assert [len(group) for group in groups] == sizes
    assert not groups or sorted(index for group in groups for index in group) == list(range(len(nodes)))
    if len(groups) >= len(set(nodes)) and set(sizes) != {43}:
        assert all(len({nodes[index] for index in group}) == 1 for group in groups)
