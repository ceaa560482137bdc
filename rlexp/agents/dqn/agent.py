"""DQN: samples, stores and learns in turn. It has the policy, learner and exploration of the whole DQN family."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from rlexp.agents.dqn.exploration import EpsilonSchedule
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.players import DQNPolicies, DQNWorkerParts
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import emulation, learner_device
from rlexp.agents.workers import WorkerLinks, WorkerParts
from rlexp.config.keys.dqn import DQNConfig
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer, RowsOfShard
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.policy_optimizer import Figures, InlineLearnerRunner, ReplayOptimizer
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.policy import Learner
from rlexp.rollout.source import SampleSource
from rlexp.schedules import PiecewiseSchedule, derive_seed

BOARD_LEARNER_QUEUE = 4
"""Batches that wait for the learner, if actors join over a board."""

DQNConfigT = TypeVar("DQNConfigT", bound=DQNConfig)


class DQNAgent(OffPolicyAgent[DQNConfigT]):
    """DQN (Mnih et al. 2015) with one replay shard in the learner's process."""

    POLICIES = DQNPolicies
    policies: DQNPolicies
    target_counts_trained = False
    """Whether trained steps decide when the target network is copied; otherwise sampled steps do."""

    def make_learner(self) -> DQNLearner:
        config = self.config
        learner_config = DQNLearnerConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            double_q=config.double_q,
            target_network_update_freq=config.target_network_update_freq,
            target_counts_trained=self.target_counts_trained,
            tau=config.tau,
            device=learner_device(config.num_gpus),
            precision=config.learner_precision,
        )
        emulated = emulation(config.learner_precision, learner_config.device)
        if emulated is not None:
            self.add_event(emulated)
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return DQNLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"), self.add_event)

    def make_source(self) -> SampleSource:
        # Workers sample during the update, and get its weights with their next call.
        return self.place_workers(WorkerLinks(queue_depth=1, max_weight_sync_delay=1))

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

    def make_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        if self.board is not None:
            return self._make_board_optimizer(learner, source)
        return super().make_optimizer(learner, source)

    def epsilon_schedule(self, worker_index: int) -> EpsilonSchedule:
        """Return the ε of the envs of worker ``worker_index``."""
        return self._players.epsilon_schedule(worker_index)

    def stats(self) -> Figures:
        """Return ε at the steps sampled so far, and the stats of the board and its actors."""
        return {**self._players.figures(self.optimizer.counters.num_steps_sampled), **super().stats()}

    def reported_epsilon(self) -> float:
        """Return the largest ε in the least-exploring third of the ladder; no limit without a ladder.

        Only episodes of envs with at most this ε count for ``episode_reward_mean``.
        """
        return self._players.reported_epsilon()

    @cached_property
    def _players(self) -> DQNWorkerParts:
        num_seats = None if self.board is None else self.config.board.actors
        return DQNWorkerParts(self.config, self.policies.network, num_seats)

    def _make_board_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        """Return the optimizer of Ape-X with one shard in this process: rounds would wait for the network."""
        config = self.config
        # As without a board, a batch for each round; here each fragment is a round.
        intensity = config.training_intensity or config.train_batch_size / self._steps_per_fragment
        self.add_event(
            f"DQN with a board samples and learns side by side; training_intensity {intensity:g} holds them together"
        )
        return AsyncReplayOptimizer(
            self.pool,
            source,
            ReplayShards(self.pool, lambda index, attempt: self.pool.place("replay", None, self.make_shard), 1),
            self._make_board_runner(learner),
            DataPathConfig(replay_depth=BOARD_LEARNER_QUEUE, store_depth=self.num_players, beta=self.beta_schedule()),
            Pacing(intensity, config.train_batch_size),
            np.random.default_rng(derive_seed(self.stream_seed, "routing")),
        )

    @property
    def _steps_per_fragment(self) -> int:
        return self.config.fragment_length * self.config.num_envs_per_worker

    def _make_board_runner(self, learner: Learner) -> LearnerRunner[RowsOfShard]:
        """Return the learner's runner: a thread, unless it and the optimizer's would only take turns in Python."""
        if isinstance(learner, DQNLearner) and learner.has_short_updates(self.config.train_batch_size):
            return InlineLearnerRunner(learner, BOARD_LEARNER_QUEUE)
        return LearnerThread(learner, BOARD_LEARNER_QUEUE)
