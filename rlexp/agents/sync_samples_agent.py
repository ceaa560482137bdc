"""Agents that learn from samples of their newest weights: no replay, a train batch at a time."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TypeVar, cast

from rlexp.agents.agent import Agent
from rlexp.agents.workers import WorkerLinks
from rlexp.config.keys.sync_samples_keys import SyncSamplesKeys
from rlexp.optimizers.sync_samples_optimizer import SyncSamplesOptimizer, TrainBatchConfig, TrainBatchLearner
from rlexp.policy import Learner
from rlexp.rollout.source import SampleSource

CALLS_PER_WORKER = 2
"""Least sample calls in flight per worker: the second one hides the time of the messages."""

SyncSamplesKeysT = TypeVar("SyncSamplesKeysT", bound=SyncSamplesKeys)


class SyncSamplesAgent(Agent[SyncSamplesKeysT]):
    """An agent whose workers sample a train batch with the newest weights before its learner learns on it."""

    optimizer: SyncSamplesOptimizer

    @abstractmethod
    def make_learner(self) -> TrainBatchLearner:
        """Return the learner, which learns on a whole train batch at once."""

    def waits_for(self) -> str:
        return f"the train batch has {self.config.whole_train_batch * self.rows_per_env:,} rows"

    def make_source(self) -> SampleSource:
        return self.place_workers(WorkerLinks(self.calls_per_worker(), max_weight_sync_delay=0))

    def make_optimizer(self, learner: Learner, source: SampleSource) -> SyncSamplesOptimizer:
        return SyncSamplesOptimizer(self.pool, source, cast(TrainBatchLearner, learner), self.train_batch_config())

    def train_batch_config(self) -> TrainBatchConfig:
        """Return how a train batch is collected."""
        config = self.config
        return TrainBatchConfig(
            size=config.whole_train_batch * self.rows_per_env,
            steps_per_call=config.fragment_length * config.num_envs_per_worker * self.rows_per_env,
            num_workers=config.num_workers,
            overlaps=config.sample_async and config.num_workers > 0,
        )

    def calls_per_worker(self) -> int:
        """Return the most calls in flight of a worker: a whole train batch while the learner learns."""
        config = self.config
        if not config.sample_async or config.num_workers == 0:
            return CALLS_PER_WORKER
        steps_per_round = config.fragment_length * config.num_envs_per_worker * config.num_workers
        return max(CALLS_PER_WORKER, math.ceil(config.whole_train_batch / steps_per_round))
