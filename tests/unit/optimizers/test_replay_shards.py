"""Fragments and shards that are lost with a node, and shards that do not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from rlexp.cluster.pool.pool import Actor, ActorLostError, ArgumentLostError, ClusterState, Completed, Lane, Ref
from rlexp.errors import TrialError
from rlexp.optimizers.replay_shards import MAX_REPLACEMENTS, SILENT_S, ReplayShards
from rlexp.replay.shard import ReplayShard
from tests.lab.doubles import HeldPool, prioritized_rows
from tests.unit.optimizers.bench import CONFIG, Bench, make_shards

R = TypeVar("R")
DIED = ActorLostError("its process died")


class LossyPool(HeldPool):
    """Holds calls back, and fails those of ``lost`` methods; ``deaf`` actors never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()
        self.deaf: set[Actor[Any]] = set()
        self.dead: dict[Actor[Any], str] = {}

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if actor in self.deaf:
            self.calls.append((actor, method.__name__, args))
        elif method.__name__ in self.lost:
            lane.deliver(Completed(actor, (Ref(ArgumentLostError("a value that it needs is lost")),)))
        else:
            super().start(lane, actor, method, args)

    def call(self, actor: Actor[Any], method: Callable[..., R], *args: object) -> Ref[R]:
        return Ref(TimeoutError()) if actor in self.deaf else super().call(actor, method, *args)

    def get(self, ref: Ref[R], timeout: float) -> R:
        if isinstance(ref.handle, Exception):
            raise ref.handle
        return super().get(ref, timeout)

    def cluster_state(self) -> ClusterState:
        return ClusterState(placed=frozenset(), lost=self.dead)


def lossy_bench(num_shards: int, store_depth: int = 100) -> tuple[Bench, LossyPool]:
    pool = LossyPool()
    return Bench(make_shards(num_shards), capacity=4, config=replace(CONFIG, store_depth=store_depth), pool=pool), pool


def clocked_shards(pool: LossyPool, now: list[float], num_shards: int = 1) -> ReplayShards:
    return ReplayShards(pool, lambda index, attempt: make_shards(1)[0], num_shards, lambda: now[0])


def test_lost_fragment_is_counted_and_the_shard_keeps_its_rows() -> None:
    bench, pool = lossy_bench(1)
    pool.lost = {"add_batch"}
    for _ in range(3):
        bench.source.give(prioritized_rows(1.0, 5))
    bench.round()
    bench.round()
    stats = bench.optimizer.stats()
    assert stats["num_fragments_lost"] == 3
    assert stats["replay_fill"] == 0.5
    assert bench.optimizer.counters.num_steps_sampled == 15
    assert bench.optimizer.drain_events() == []


def test_lost_batch_is_asked_for_again() -> None:
    bench, pool = lossy_bench(1)
    pool.lost = {"replay"}
    bench.optimizer.step()
    pool.lost = set()
    for _ in range(3):
        bench.round(updates=1)
    assert bench.learner.num_updates > 0
    assert bench.optimizer.drain_events() == []


def test_shard_that_does_not_answer_fills_only_its_share_of_the_depth() -> None:
    bench, pool = lossy_bench(2, store_depth=4)
    silent, other = bench.shards
    pool.deaf = {silent}
    for _ in range(30):
        bench.source.give(prioritized_rows(1.0, 1))
        bench.round()
    assert len(bench.source.clocks) >= 30
    assert len(pool.made("add_batch", silent)) <= 2 + 1
    assert len(pool.made("add_batch", other)) >= 27


def test_silent_shard_is_not_waited_for_by_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, pool = lossy_bench(2)
    silent = bench.shards[0]
    pool.deaf = {silent}
    bench.optimizer.step()
    assert len(pool.made("replay", silent)) == 2
    monkeypatch.setattr("rlexp.optimizers.replay_shards.SILENT_S", -1.0)  # it has been silent for long
    for _ in range(3):
        pool.let_run()
        bench.optimizer.step()
    assert bench.thread.queue_size == 4  # all that the queue holds
    assert len(pool.made("replay", silent)) == 2


def test_figures_of_a_shard_that_does_not_answer_are_its_last_ones() -> None:
    bench, pool = lossy_bench(2)
    before = bench.optimizer.stats()["replay_fill_per_shard"]
    pool.deaf = {bench.shards[0]}
    assert bench.optimizer.stats()["replay_fill_per_shard"] == before


def test_silence_begins_with_the_oldest_unanswered_call() -> None:
    now = [0.0]
    shards = clocked_shards(LossyPool(), now)
    (shard,) = shards
    shards.asked(shard)
    now[0] = SILENT_S - 1.0
    shards.asked(shard)
    assert not shards.is_silent(shard)
    now[0] = SILENT_S + 1.0
    assert shards.is_silent(shard)
    shards.answered(shard, is_asked=True)
    assert not shards.is_silent(shard)
    shards.answered(shard, is_asked=False)
    now[0] += 10 * SILENT_S
    assert not shards.is_silent(shard)


def test_replacement_that_dies_at_once_is_replaced_later_each_time() -> None:
    now = [100.0]
    shards = clocked_shards(LossyPool(), now)
    delays = []
    for _ in range(6):
        (shard,) = shards
        shards.replace(shard, DIED)
        began_s = now[0]
        while shard in list(shards):
            now[0] += 0.5
            shards.place_replacements()
        delays.append(now[0] - began_s)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]


def test_shard_lost_with_its_node_is_not_counted() -> None:
    now, pool = [100.0], LossyPool()
    shards = clocked_shards(pool, now)
    for _ in range(2 * MAX_REPLACEMENTS):
        (shard,) = shards
        pool.dead[shard] = "10.0.0.3"
        now[0] += 60.0
        shards.replace(shard, DIED)
    for _ in range(MAX_REPLACEMENTS):
        now[0] += 60.0
        shards.replace(shards[0], DIED)
    with pytest.raises(TrialError, match="replay shards failed"):
        shards.replace(shards[0], DIED)


def test_checkpoint_does_not_wait_for_a_shard_that_never_answers() -> None:
    pool = LossyPool()
    shards = clocked_shards(pool, [0.0])
    (shard,) = shards
    pool.deaf = {shard}
    with pytest.raises(ActorLostError, match="did not answer"):
        shards.states()
    assert shard not in shards
    assert isinstance(shards[0].handle, ReplayShard)
