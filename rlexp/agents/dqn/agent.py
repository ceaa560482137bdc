"""DQN: samples, stores and learns in turn. It has the policy, learner and exploration of the whole DQN family."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import torch

from rlexp.agents.dqn.exploration import EpsilonSchedule
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.players import DQNPolicies, DQNWorkerParts
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import emulation, learner_device
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.dqn import DQNConfig
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.schedules import PiecewiseSchedule, derive_seed

DQNConfigT = TypeVar("DQNConfigT", bound=DQNConfig)


class DQNAgent(OffPolicyAgent[DQNConfigT]):
    """DQN (Mnih et al. 2015) with one replay shard in the learner's process."""

    POLICIES = DQNPolicies
    policies: DQNPolicies

    def make_learner(self) -> DQNLearner:
        return DQNLearner(
            self.policies.network, self.learner_config(), derive_seed(self.seed, "learner"), self.add_event
        )

    def learner_config(self) -> DQNLearnerConfig:
        """Return the learner's settings; let torch use the driver's CPUs."""
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
            steps_per_row=config.replay.steps_per_row,
        )
        emulated = emulation(config.learner_precision, learner_config.device)
        if emulated is not None:
            self.add_event(emulated)
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return learner_config

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

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
        return self.policies.players(None if self.board is None else self.config.board.actors)
