"""Agents that learn from samples as they come: workers never wait, and there is no replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from rlexp.agents.agent import Agent
from rlexp.agents.workers import WorkerLinks, rollout_fingerprint
from rlexp.config.keys.async_samples_keys import AsyncSamplesKeys
from rlexp.optimizers.async_samples_optimizer import AsyncSamplesConfig, AsyncSamplesOptimizer
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.policy_optimizer import InlineLearnerRunner
from rlexp.policy import Learner
from rlexp.rollout.source import SampleSource
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed

AsyncSamplesKeysT = TypeVar("AsyncSamplesKeysT", bound=AsyncSamplesKeys)


class AsyncSamplesAgent(Agent[AsyncSamplesKeysT]):
    """An agent whose learner trains on fragments as they come, in a thread of its own if others sample."""

    optimizer: AsyncSamplesOptimizer

    def waits_for(self) -> str:
        return f"the train batch has {self.num_steps_of_batch * self.rows_per_env:,} rows"

    @property
    def num_steps_of_batch(self) -> int:
        """Least env steps of a train batch."""
        return self.config.train_batch_size

    def make_source(self) -> SampleSource:
        depth = self.config.max_sample_requests_in_flight_per_worker
        return self.place_workers(WorkerLinks(depth, max_weight_sync_delay=0, shares_weights=True))

    def make_optimizer(self, learner: Learner, source: SampleSource) -> AsyncSamplesOptimizer:
        config = self.config
        has_own = config.num_workers > 0 or self.board is None
        length = config.fragment_length if has_own else config.joined_fragment_length
        path = AsyncSamplesConfig(
            train_batch_size=self.num_steps_of_batch * self.rows_per_env,
            steps_per_call=length * config.num_envs_per_worker * self.rows_per_env,
            num_passes=config.num_sgd_iter,
            num_slots=config.num_slots,
            broadcast_interval=config.broadcast_interval,
            replay_proportion=config.replay_proportion,
            num_replay_slots=config.replay_buffer_num_slots,
            max_policy_lag=config.max_policy_lag,
        )
        return AsyncSamplesOptimizer(
            self.pool,
            source,
            self._make_runner(learner),
            path,
            np.random.default_rng(derive_seed(self.stream_seed, "old_fragments")),
        )

    def restore_optimizer(self, state: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
        """Leave the rows of a checkpoint out if the workers make other ones now, such as without ``vtrace``."""
        fingerprint = rollout_fingerprint(self.env_config, self.config, self.board is not None)
        if state.get("rollout_fingerprint") == fingerprint:
            super().restore_optimizer(state, arrays)

    def _make_runner(self, learner: Learner) -> LearnerRunner[int]:
        """Return a thread for the learner; without other players it learns in this one, for repeatable runs.

        Several learners have processes of their own, which this thread asks; workers play meanwhile.
        """
        config = self.config
        if config.learner_processes or self.plays_alone:
            # With a limit of age, workers whose weights are too old do not sample, and so do not ask for newer ones.
            unasked = None if config.max_policy_lag is None else config.broadcast_interval
            return InlineLearnerRunner(learner, copy_interval=unasked)
        return LearnerThread(learner, config.learner_queue_size, config.broadcast_interval)
