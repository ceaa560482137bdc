"""What the Ape-X optimizer tells of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlexp.optimizers.async_replay_optimizer import STEP_TIMEOUT_S
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.policy_optimizer import replay_figures
from rlexp.replay.shard import ShardStats
from tests.doubles.scripted import prioritized_rows
from tests.unit.optimizers.bench import BATCH_SIZE, CONFIG, Bench, make_shards


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
