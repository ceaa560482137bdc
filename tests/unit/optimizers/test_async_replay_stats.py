"""What the Ape-X optimizer tells of itself."""

from __future__ import annotations

import pytest

from rlexp.optimizers.pacing import Pacing
from tests.unit.optimizers.bench import BATCH_SIZE, Bench, make_shards
from tests.unit.optimizers.scripted import prioritized_rows


def test_the_age_of_the_weights_that_acted_is_told() -> None:
    bench = Bench(make_shards(1))
    while bench.learner.num_updates < 6:
        bench.round(updates=1)
    bench.source.give(prioritized_rows(1.0, 1), weights_version=2)
    bench.source.give(prioritized_rows(1.0, 1), weights_version=6)
    bench.optimizer.step()
    assert bench.optimizer.stats().weight_age == 2.0
    assert bench.optimizer.stats().weight_age == 0.0


def test_stats_tell_of_shards_queue_and_movements() -> None:
    bench = Bench(make_shards(2), capacity=5)
    for _ in range(3):
        bench.round(updates=1)
    stats = bench.optimizer.stats()
    assert [shard.size for shard in stats.shards] == [32, 32]
    assert (stats.learner_queue_size, stats.learner_queue_capacity) == (bench.thread.queue_size, 5)
    assert stats.learner == {"loss": float(bench.learner.num_updates)}
    assert set(stats.timing_s) == {"wait", "store_samples", "feed_learner", "return_priorities", "publish_weights"}
    assert set(stats.learner_time_share) == {"wait", "learning", "copying_weights"}
    assert 0.0 <= stats.learner_wait_share == stats.learner_time_share["wait"] <= 1.0


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
    assert bench.optimizer.stats().bottleneck == bottleneck


def test_a_learner_that_waits_for_the_workers_share_of_the_pace_is_held_up_by_workers() -> None:
    bench = Bench(make_shards(2), pacing=Pacing(1.0, BATCH_SIZE))
    for _ in range(6):
        bench.round(updates=8)
    bench.thread.time_s["wait"] += 1e6
    assert bench.optimizer.stats().bottleneck == "workers"
