"""An Ape-X optimizer on a bench: nothing runs until a test lets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlexp.cluster.pool.pool import Actor, TaskPool
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer, RowsOfShard
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.replay.shard import ReplayShard
from rlexp.schedules import LinearSchedule
from tests.lab.doubles import HeldPool, ScriptedLearner, ScriptedSource, make_shard, rows

BATCH_SIZE = 4
CONFIG = DataPathConfig(replay_depth=2, store_depth=100, beta=LinearSchedule(0.4, 0.4, 0), reports_timing=True)


class SteppedLearnerThread(LearnerThread[RowsOfShard]):
    """Learns when a test says so, in the test's thread."""

    def start(self) -> None:
        return None

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self._learn_once()


@dataclass
class Bench:
    """An optimizer with all that it moves between."""

    shards: Sequence[Actor[ReplayShard]]
    capacity: int = 8
    config: DataPathConfig = CONFIG
    pacing: Pacing = field(default_factory=lambda: Pacing(None, BATCH_SIZE))
    learner: ScriptedLearner = field(default_factory=ScriptedLearner)
    source: ScriptedSource = field(default_factory=ScriptedSource)
    pool: HeldPool = field(default_factory=HeldPool)

    def __post_init__(self) -> None:
        self.thread = SteppedLearnerThread(self.learner, self.capacity)
        self.optimizer = self.optimizer_with(self.thread)

    def optimizer_with(self, learner_runner: LearnerRunner[RowsOfShard]) -> AsyncReplayOptimizer:
        """Return an optimizer with another runner of the learner."""
        return AsyncReplayOptimizer(
            self.pool,
            self.source,
            places_of(self.pool, self.shards),
            learner_runner,
            self.config,
            self.pacing,
            np.random.default_rng(0),
        )

    def round(self, updates: int = 0) -> None:
        """Let all calls run, learn, and step."""
        self.pool.let_run()
        self.thread.learn(min(updates, self.thread.queue_size))
        self.optimizer.step()


def places_of(pool: TaskPool, shards: Sequence[Actor[ReplayShard]]) -> ReplayShards:
    """Return the places of ``shards``, where a lost one is followed by an empty one."""

    def place(index: int, generation: int) -> Actor[ReplayShard]:
        return make_shards(1, filled=False)[0] if generation else shards[index]

    return ReplayShards(pool, place, len(shards))


def make_shards(count: int, filled: bool = True, learning_starts: int = 1) -> list[Actor[ReplayShard]]:
    """Make shards; the rows of shard i have the observation, and so the TD error, i + 1."""
    shards = [make_shard(learning_starts=learning_starts, train_batch_size=BATCH_SIZE) for _ in range(count)]
    if filled:
        for index, shard in enumerate(shards):
            shard.add_batch(rows(index + 1.0, 32))
    return [Actor(f"replay-{index}", shard) for index, shard in enumerate(shards)]
