"""DQN: samples, stores and learns in turn; the policy, the learner and the exploration of its whole family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch

from rlexp.agents.dqn.exploration import (
    AnnealedEpsilon,
    ConstantEpsilon,
    EpsilonGreedyPolicy,
    EpsilonSchedule,
    PolicyExploration,
    epsilon_ladder,
)
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import learner_device
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.dqn import DQNConfig
from rlexp.envs import is_byte_vector
from rlexp.models import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.policy_optimizer import Figures, ReplayOptimizer
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.policy import Learner, Policy
from rlexp.replay import ReplayShard
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.n_step import NStep
from rlexp.rollout.source import SampleSource
from rlexp.schedules import LinearSchedule, PiecewiseSchedule
from rlexp.seeding import derive_seed

DQNConfigT = TypeVar("DQNConfigT", bound=DQNConfig)


class DQNAgent(OffPolicyAgent[DQNConfigT]):
    """DQN (Mnih et al. 2015) with one replay shard in the learner's process."""

    target_counts_trained = False
    """Whether the target network is copied by trained steps, or by sampled ones."""

    @classmethod
    def make_policy(cls, config: DQNConfigT, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Policy:
        return DQNPolicy(q_network_config(config, observation_space, action_space))

    @classmethod
    def exploring_player(
        cls, config: DQNConfigT, policy: Policy, action_space: gym.Space[Any], num_envs: int, seed: int
    ) -> ActingPolicy:
        assert isinstance(action_space, gym.spaces.Discrete)
        epsilons = np.full(num_envs, config.evaluation_epsilon)
        return EpsilonGreedyPolicy(policy, epsilons, int(action_space.n), seed)

    @classmethod
    def evaluation_exploration(cls, config: DQNConfigT) -> Mapping[str, float]:
        return {"epsilon": config.evaluation_epsilon}

    def make_learner(self) -> Learner:
        config = self.config
        learner_config = DQNLearnerConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            double_q=config.double_q,
            target_network_update_freq=config.target_network_update_freq,
            target_counts_trained=self.target_counts_trained,
            device=learner_device(config.num_gpus),
            precision=config.learner_precision,
        )
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return DQNLearner(self.network_config(), learner_config, derive_seed(self.seed, "learner"))

    def make_source(self) -> SampleSource:
        # The workers overlap with the update, and get its weights with their next call.
        return self.place_workers(queue_depth=1, max_weight_sync_delay=1)

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        config = self.config
        return WorkerParts(
            make_policy=partial(
                DQNPolicy,
                self.network_config(),
                self._policy_exploration(worker_index, seed),
                config.worker_side_prioritization,
                num_threads,
            ),
            fold=NStep(config.n_step, config.gamma),
            reported_envs=self._reported_envs(worker_index),
        )

    def make_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        shard = ReplayShard(self.replay_config(1), derive_seed(self.stream_seed, "replay", 0))
        round_size = max(self.config.num_workers, 1)
        pacing = Pacing(self.config.training_intensity, self.config.train_batch_size)
        return SyncReplayOptimizer(self.pool, source, shard, learner, round_size, self.beta_schedule(), pacing)

    def network_config(self) -> QNetworkConfig:
        """Return the shape of the Q-network for this env."""
        return q_network_config(self.config, self.observation_space, self.action_space)

    def epsilon_schedule(self, worker_index: int) -> EpsilonSchedule:
        """Return the ε of the envs of worker ``worker_index``."""
        config, num_envs = self.config, self.config.num_envs_per_worker
        if not self._explores_by_epsilon():
            return ConstantEpsilon((0.0,) * num_envs)
        if not config.per_worker_exploration:
            first, last = config.exploration_initial_eps, config.exploration_final_eps
            schedule = LinearSchedule(first, last, config.resolved_epsilon_timesteps)
            return AnnealedEpsilon(schedule, config.exploration_warmup_timesteps, num_envs)
        ladder = self._ladder()
        if config.resolved_epsilon_ladder == "worker":
            return ConstantEpsilon((ladder[worker_index],) * num_envs)
        return ConstantEpsilon(ladder[worker_index * num_envs : (worker_index + 1) * num_envs])

    def stats(self) -> Figures:
        """Return ε, as of the steps sampled so far."""
        now = self.optimizer.counters.num_steps_sampled
        epsilons = [self.epsilon_schedule(index).epsilons(now) for index in range(max(self.config.num_workers, 1))]
        return {
            "min_exploration": float(min(each.min() for each in epsilons)),
            "max_exploration": float(max(each.max() for each in epsilons)),
            "exploration_per_worker": {str(index): float(each.mean()) for index, each in enumerate(epsilons)},
        }

    def reported_epsilon(self) -> float:
        """Return the largest ε of the third of the ladder that explores least; no limit without a ladder.

        Only episodes of envs with at most this ε count for ``episode_reward_mean``.
        """
        if not (self.config.per_worker_exploration and self._explores_by_epsilon()):
            return math.inf
        ladder = sorted(self._ladder())
        return ladder[math.ceil(len(ladder) / 3) - 1]

    def _reported_envs(self, worker_index: int) -> tuple[bool, ...] | None:
        limit = self.reported_epsilon()
        if math.isinf(limit):
            return None
        return tuple((self.epsilon_schedule(worker_index).epsilons(0) <= limit).tolist())

    def _explores_by_epsilon(self) -> bool:
        """Whether ε explores: not with ``soft_q``, and with ``noisy`` only if the file says so."""
        config = self.config
        return config.explore and not config.soft_q and (config.epsilon_with_noisy or not config.noisy)

    def _ladder(self) -> tuple[float, ...]:
        num_workers = max(self.config.num_workers, 1)
        per_worker = self.config.resolved_epsilon_ladder == "worker"
        return epsilon_ladder(num_workers if per_worker else num_workers * self.config.num_envs_per_worker)

    def _policy_exploration(self, worker_index: int, seed: int) -> PolicyExploration | None:
        config = self.config
        if not config.explore:
            return None
        return PolicyExploration(
            epsilon=self.epsilon_schedule(worker_index),
            seed=seed,
            worker_index=worker_index,
            softmax_temp=config.softmax_temp if config.soft_q else None,
            parameter_noise_stddev=config.parameter_noise_initial_stddev if config.parameter_noise else None,
        )


def q_network_config(
    config: DQNConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> QNetworkConfig:
    """Return the shape of the Q-network for an env's (checked) spaces."""
    assert observation_space.shape is not None
    assert isinstance(action_space, gym.spaces.Discrete)
    head = HeadConfig(
        hiddens=config.hiddens,
        dueling=config.dueling,
        noisy=config.noisy,
        sigma0=config.sigma0,
        num_atoms=config.num_atoms,
        v_min=config.v_min,
        v_max=config.v_max,
    )
    return QNetworkConfig(
        observation_shape=observation_space.shape,
        num_actions=int(action_space.n),
        torso=torso_config_of(config),
        head=head,
        sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observation_space),
    )
