"""Ape-X's four movements, step by step.

What the Ape-X optimizer tells of itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.policy_optimizer import STEP_TIMEOUT_S, replay_figures
from rlexp.replay.shard import ShardStats
from rlexp.sample_batch import OBS
from rlexp.schedules import LinearSchedule
from tests.lab.doubles import TIMEOUT_S, HeldPool, ScriptedLearner, prioritized_rows, rows
from tests.unit.optimizers.bench import BATCH_SIZE, CONFIG, Bench, make_shards


def test_samples_are_counted_stored_and_told() -> None:
    bench = Bench(make_shards(2, filled=False))
    bench.source.give(prioritized_rows(1.0, 5), num_env_steps=8)
    bench.source.give(prioritized_rows(2.0, 3), num_env_steps=3)
    bench.round()
    bench.round()
    assert bench.optimizer.counters.num_steps_sampled == 11
    assert [info.num_rows for info in bench.optimizer.drain_infos()] == [5, 3]
    assert bench.optimizer.drain_infos() == []
    assert sum(shard.handle.stats().num_added for shard in bench.shards) == 8
    assert bench.source.clocks == [0, 11]
    assert bench.learner.progress == [11, 11]


def test_reports_of_gatherers_count_one_by_one_as_training_goes_on() -> None:
    pacing = Pacing(1.0, BATCH_SIZE)
    pacing.begin(0, 0)
    bench = Bench(make_shards(1), pacing=pacing)
    for _ in range(3):
        bench.source.give_report(num_rows=2 * BATCH_SIZE)
    bench.round()
    assert bench.optimizer.counters.num_steps_sampled == 2 * BATCH_SIZE
    for _ in range(12):
        bench.round()
        bench.thread.learn(bench.thread.queue_size)
    assert bench.optimizer.counters.num_steps_sampled == 6 * BATCH_SIZE
    assert len(bench.optimizer.drain_infos()) == 3


def test_samples_are_dealt_to_all_shards_about_evenly() -> None:
    bench = Bench(make_shards(4, filled=False), config=replace(CONFIG, replay_depth=1, store_depth=10_000))
    for _ in range(400):
        bench.source.give(prioritized_rows(1.0, 1))
    bench.round()
    # 100 each, with a standard deviation of 8.7.
    for shard in bench.shards:
        assert abs(len(bench.pool.made("add_batch", shard)) - 100) < 5 * 8.7


def test_rows_that_were_written_for_a_shard_go_to_it() -> None:
    bench = Bench(make_shards(4, filled=False), config=replace(CONFIG, replay_depth=1, store_depth=10_000))
    for shard in (2, 0, 2, 3):
        bench.source.give(prioritized_rows(shard, 1), shard=shard)
    bench.round()
    added = [[args[0].handle[OBS].tolist() for args in bench.pool.made("add_batch", shard)] for shard in bench.shards]
    assert added == [[[0.0]], [], [[2.0], [2.0]], [[3.0]]]


def test_a_batch_without_rows_counts_its_steps_and_is_not_stored() -> None:
    bench = Bench(make_shards(1, filled=False))
    bench.source.give(rows(1.0, 0), num_env_steps=6)
    bench.round()
    assert bench.optimizer.counters.num_steps_sampled == 6
    assert bench.pool.made("add_batch") == []


def test_no_samples_are_taken_while_too_many_are_on_their_way() -> None:
    bench = Bench(make_shards(1, filled=False), config=replace(CONFIG, replay_depth=1, store_depth=2))
    for _ in range(2):
        bench.source.give(prioritized_rows(1.0, 1))
    for _ in range(3):
        bench.optimizer.step()
    assert len(bench.source.clocks) == 1
    bench.pool.let_run()
    bench.optimizer.step()
    assert len(bench.source.clocks) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    num_shards=st.integers(1, 4),
    capacity=st.integers(1, 6),
    replay_depth=st.integers(1, 4),
    script=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=25),
)
def test_no_more_batches_are_under_way_than_the_learners_queue_holds(
    num_shards: int, capacity: int, replay_depth: int, script: list[tuple[int, int]]
) -> None:
    under_way = 0

    def on_start(method: str) -> None:
        nonlocal under_way
        under_way += method == "replay"
        assert under_way <= capacity

    bench = Bench(
        make_shards(num_shards),
        capacity,
        replace(CONFIG, replay_depth=replay_depth, store_depth=9),
        pool=HeldPool(on_start),
    )
    for num_calls, num_updates in script:
        bench.pool.let_run(num_calls)
        updates = min(num_updates, bench.thread.queue_size)
        bench.thread.learn(updates)
        under_way -= updates
        bench.optimizer.step()
        assert bench.thread.queue_size <= capacity
    # And what has room is asked for.
    bench.round()
    assert under_way == min(capacity, num_shards * replay_depth + bench.thread.queue_size)


def test_each_shard_has_its_depth_of_calls_in_flight() -> None:
    bench = Bench(make_shards(3), capacity=100, config=replace(CONFIG, replay_depth=4, store_depth=9))
    for _ in range(3):
        bench.optimizer.step()
    assert [len(bench.pool.made("replay", shard)) for shard in bench.shards] == [4, 4, 4]


@pytest.mark.parametrize("capacity", [1, 3, 16])
def test_a_slow_learner_gets_batches_of_all_shards_alike(capacity: int) -> None:
    bench = Bench(make_shards(4), capacity, replace(CONFIG, replay_depth=4, store_depth=9))
    for _ in range(200):
        bench.round(updates=1)
    sampled = [shard.handle.stats().num_sampled for shard in bench.shards]
    assert min(sampled) >= 0.8 * max(sampled), sampled


def test_shards_that_hold_too_little_are_not_asked_again_until_they_were_given_more() -> None:
    bench = Bench(
        make_shards(2, filled=False, learning_starts=100), config=replace(CONFIG, replay_depth=3, store_depth=100)
    )
    for _ in range(10):
        bench.round()
    asked = [len(bench.pool.made("replay", shard)) for shard in bench.shards]
    assert asked == [3, 3]
    bench.source.give(prioritized_rows(1.0, 4))
    for _ in range(10):
        bench.round()
    given = [len(bench.pool.made("add_batch", shard)) for shard in bench.shards]
    asked_again = [len(bench.pool.made("replay", shard)) for shard in bench.shards]
    assert sorted(given) == [0, 1]
    assert asked_again == [before + 3 * batches for before, batches in zip(asked, given, strict=True)]


def test_workers_play_on_while_replay_that_has_lost_its_rows_fills_again() -> None:
    pacing = Pacing(1.0, BATCH_SIZE)
    pacing.begin(0, 0)
    bench = Bench(make_shards(1, filled=False, learning_starts=100), pacing=pacing)
    for _ in range(60):
        bench.source.give(prioritized_rows(1.0, 4))
        bench.round()
    assert bench.optimizer.counters.num_steps_sampled > 100  # the learner, which is held, has its next batches


def test_priorities_return_to_the_shard_that_the_batch_came_from() -> None:
    bench = Bench(make_shards(3), capacity=12)
    for _ in range(8):
        bench.round(updates=4)
    for index, shard in enumerate(bench.shards):
        updates = bench.pool.made("update_priorities", shard)
        assert updates, f"shard {index} was never replayed"
        for keys, td_errors in updates:
            assert len(keys) == BATCH_SIZE
            assert td_errors.tolist() == [index + 1.0] * BATCH_SIZE


def test_every_update_is_counted_and_returns_its_priorities_once() -> None:
    bench = Bench(make_shards(2))
    for _ in range(5):
        bench.round(updates=2)
    assert bench.learner.num_updates > 0
    assert bench.optimizer.counters.num_steps_trained == bench.learner.num_updates * BATCH_SIZE
    assert len(bench.pool.made("update_priorities")) == bench.learner.num_updates


def test_beta_follows_the_trained_steps() -> None:
    bench = Bench(make_shards(1), config=replace(CONFIG, beta=LinearSchedule(0.4, 1.0, 20 * BATCH_SIZE)))
    seen = []
    for _ in range(30):
        trained, num_calls = bench.optimizer.counters.num_steps_trained, len(bench.pool.calls)
        bench.round(updates=1)
        for _, method, args in bench.pool.calls[num_calls:]:
            if method == "replay":
                assert args == (pytest.approx(0.4 + 0.6 * min(trained / (20 * BATCH_SIZE), 1.0)),)
                seen.append(args[0])
    assert (seen[0], seen[-1]) == (pytest.approx(0.4), pytest.approx(1.0))


def test_weights_are_published_at_the_start_and_then_only_newer_ones_that_are_wanted() -> None:
    bench = Bench(make_shards(1))
    bench.optimizer.start()
    for _ in range(4):
        bench.round(updates=1)
    assert bench.source.published == [(0, 0)]
    bench.source.wants_weights = True
    for _ in range(4):
        bench.round(updates=1)
    versions = [version for version, _ in bench.source.published]
    assert len(versions) > 2
    assert versions == sorted(set(versions))
    assert all(version == weights for version, weights in bench.source.published)


def test_the_error_of_the_learner_surfaces_in_a_step() -> None:
    learner = ScriptedLearner()
    learner.fails_at = 0
    bench = Bench(make_shards(1), learner=learner)
    bench.optimizer = bench.optimizer_with(LearnerThread(learner, queue_capacity=4))
    bench.optimizer.start()
    bench.optimizer.step()
    bench.pool.let_run()
    bench.optimizer.step()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    bench.optimizer.stop()
    with pytest.raises(FloatingPointError):
        bench.optimizer.step()


def test_stops_twice() -> None:
    bench = Bench(make_shards(1))
    bench.optimizer.stop()
    bench.optimizer.stop()
    assert bench.source.num_stops == 2


def test_the_age_of_the_weights_that_acted_is_told() -> None:
    bench = Bench(make_shards(1))
    while bench.learner.num_updates < 6:
        bench.round(updates=1)
    bench.source.give(prioritized_rows(1.0, 1), weights_version=2)
    bench.source.give(prioritized_rows(1.0, 1), weights_version=6)
    bench.optimizer.step()
    assert bench.optimizer.stats()["weight_age"] == 2.0
    assert bench.optimizer.stats()["weight_age"] == 0.0


def test_stats_tell_of_shards_queue_and_movements() -> None:
    bench = Bench(make_shards(2), capacity=5)
    for _ in range(3):
        bench.round(updates=1)
    stats = bench.optimizer.stats()
    assert stats["replay_fill_per_shard"] == [0.5, 0.5]
    assert (stats["learner_queue_size"], stats["learner_queue_capacity"]) == (bench.thread.queue_size, 5)
    assert stats["num_updates"] == bench.learner.num_updates
    assert (stats["num_weight_syncs"], stats["num_worker_restarts"]) == (bench.source.num_weight_syncs, 0)
    assert stats["learner"] == {"loss": float(bench.learner.num_updates)}
    assert set(stats["timing_s"]) == {"wait", "store_samples", "feed_learner", "return_priorities", "publish_weights"}
    assert set(stats["learner_time_share"]) == {"wait", "learning", "copying_weights"}
    assert 0.0 <= stats["learner_wait_share"] == stats["learner_time_share"]["wait"] <= 1.0


def test_seconds_of_the_movements_are_reported_on_request_only() -> None:
    assert "timing_s" not in Bench(make_shards(1), config=replace(CONFIG, reports_timing=False)).optimizer.stats()


def test_replay_figures_by_hand() -> None:
    shards = [
        ShardStats(size, capacity=100, num_added=size, num_sampled=0, num_stale_priorities=stale, nbytes=0)
        for size, stale in ((20, 1), (40, 2))
    ]
    assert replay_figures(shards) == {
        "replay_fill": pytest.approx(0.3),
        "replay_fill_per_shard": [0.2, 0.4],
        "num_stale_priorities": 3,
    }


@pytest.mark.parametrize(
    ("filled", "learner_waits", "bottleneck"),
    [(True, False, "learner"), (True, True, "replay"), (False, True, "workers"), (False, False, "learner")],
)
def test_the_bottleneck_in_a_word(filled: bool, learner_waits: bool, bottleneck: str) -> None:
    bench = Bench(make_shards(2, filled=filled))
    for _ in range(3):
        bench.round()
    if learner_waits:
        bench.thread.time_s["wait"] += 1e6
    assert bench.optimizer.stats()["bottleneck"] == bottleneck


def test_a_learner_that_waits_for_the_workers_share_of_the_pace_is_held_up_by_workers() -> None:
    bench = Bench(make_shards(2), pacing=Pacing(1.0, BATCH_SIZE))
    for _ in range(6):
        bench.round(updates=8)
    bench.thread.time_s["wait"] += 1e6
    assert bench.optimizer.stats()["bottleneck"] == "workers"


def test_samples_that_are_there_are_not_waited_for() -> None:
    bench = Bench(make_shards(1))
    bench.optimizer.step()
    bench.source.has_waiting = True
    bench.optimizer.step()
    waited, none = bench.source.timeouts
    assert (waited, none) == (STEP_TIMEOUT_S, 0.0)


def test_samples_without_room_are_waited_for() -> None:
    bench = Bench(make_shards(1), pacing=Pacing(1.0, BATCH_SIZE))
    bench.source.has_waiting = True
    bench.pacing.begin(0, 0)
    bench.optimizer.counters.num_steps_sampled = 10 * BATCH_SIZE  # training is behind
    bench.optimizer.step()
    assert bench.source.timeouts == [STEP_TIMEOUT_S]
