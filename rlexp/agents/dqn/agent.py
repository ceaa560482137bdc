"""DQN: samples, stores and learns in turn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import torch

from rlexp.agents.agent import Agent
from rlexp.agents.dqn.acting_network import PolicyExploration
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.config.keys.dqn import MOST_CHECKPOINTED_BYTES, DQNConfig
from rlexp.envs import is_atari, is_byte_vector, make_vector_env
from rlexp.errors import ResourceError
from rlexp.metrics.timers import RunningClock
from rlexp.models import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.policy_optimizer import PolicyOptimizer
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.policy import Learner, Policy
from rlexp.replay import ReplayConfig, ReplayShard, split_evenly
from rlexp.rollout.exploration import AnnealedEpsilon, ConstantEpsilon, EpsilonSchedule, epsilon_ladder
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.local_workers import LocalWorkers
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.rewards import RewardLimits
from rlexp.rollout.rollout_config import RolloutConfig
from rlexp.rollout.source import SampleSource
from rlexp.rollout.worker import RolloutWorker, RowWriter
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule, PiecewiseSchedule
from rlexp.seeding import derive_seed
from rlexp.task_pool import Actor, Resources

DQNConfigT = TypeVar("DQNConfigT", bound=DQNConfig)


class DQNAgentBase(Agent[DQNConfigT]):
    """What every agent of the DQN family shares: the policy, the learner, the workers and their exploration."""

    target_counts_trained: bool
    """Whether the target network is copied by trained steps, or by sampled ones."""

    @classmethod
    def make_policy(cls, config: DQNConfigT, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Policy:
        network = q_network_config(config, observation_space, action_space)
        return DQNPolicy(network, worker_side_prioritization=False, exploration=None)

    def make_learner(self) -> Learner:
        config = self.config
        learner_config = DQNLearnerConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            double_q=config.double_q,
            target_network_update_freq=config.target_network_update_freq,
            target_counts_trained=self.target_counts_trained,
            device=_device(config.num_gpus),
        )
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return DQNLearner(self.network_config(), learner_config, derive_seed(self.seed, "learner"))

    def network_config(self) -> QNetworkConfig:
        """Return the shape of the Q-network for this env."""
        return q_network_config(self.config, self.observation_space, self.action_space)

    def make_source(self, queue_depth: int, max_weight_sync_delay: int) -> SampleSource:
        """Place the rollout workers; with ``num_workers: 0`` one works in this thread."""
        config = self.config
        if config.num_workers == 0:
            worker = RolloutWorker(*self._worker_arguments(0, self.stream_seed, num_threads=None))
            return LocalWorkers(self.pool, [worker])
        limits = FleetLimits(config.max_num_worker_restarts, config.sample_timeout_s)
        fleet = Fleet(self.pool, self._place_worker, config.num_workers, limits, RunningClock())
        return RemoteWorkers(self.pool, fleet, queue_depth, max_weight_sync_delay)

    def _place_worker(self, index: int, attempt: int) -> Actor[RolloutWorker]:
        config = self.config
        resources = Resources(
            config.num_cpus_per_worker, config.num_gpus_per_worker, config.custom_resources_per_worker
        )
        # A worker's replacement does not play its predecessor's episodes again.
        seed = derive_seed(self.stream_seed, "attempt", attempt) if attempt else self.stream_seed
        arguments = self._worker_arguments(index, seed, config.num_threads_per_worker or 1)
        return self.pool.place(f"worker-{index}", resources, RolloutWorker, *arguments)

    def row_writer(self, worker_index: int) -> RowWriter | None:
        """Return what worker ``worker_index`` writes its rows with; None: it sends them."""
        return None

    def epsilon_schedule(self, worker_index: int) -> EpsilonSchedule:
        """Return how the envs of worker ``worker_index`` explore."""
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

    @classmethod
    def evaluation_epsilon(cls, config: DQNConfigT) -> float:
        return config.evaluation_epsilon

    def stores_replay(self) -> bool:
        given = self.config.checkpoint_replay
        return self.optimizer.replay_bytes() <= MOST_CHECKPOINTED_BYTES if given is None else given

    def reports_timing(self) -> bool:
        return False

    def epsilons(self) -> list[Array]:
        now = self.optimizer.counters.num_steps_sampled
        return [self.epsilon_schedule(index).epsilons(now) for index in range(max(self.config.num_workers, 1))]

    def reported_epsilon(self) -> float:
        """Return the largest ε of the third of the ladder that explores least; no limit without a ladder."""
        if not (self.config.per_worker_exploration and self._explores_by_epsilon()):
            return math.inf
        ladder = sorted(self._ladder())
        return ladder[math.ceil(len(ladder) / 3) - 1]

    def beta_schedule(self) -> LinearSchedule:
        """Return the importance-sampling exponent over trained steps."""
        config = self.config
        return LinearSchedule(
            config.prioritized_replay_beta,
            config.resolved_final_prioritized_replay_beta,
            config.resolved_beta_annealing_timesteps,
        )

    def replay_config(self, num_shards: int) -> ReplayConfig:
        """Return what one of ``num_shards`` shards needs to know."""
        config = self.config
        return ReplayConfig(
            capacity=split_evenly(config.buffer_size, num_shards),
            learning_starts=split_evenly(config.learning_starts, num_shards),
            train_batch_size=config.train_batch_size,
            prioritized=config.prioritized_replay,
            alpha=config.prioritized_replay_alpha,
            beta=config.prioritized_replay_beta,
            eps=config.prioritized_replay_eps,
            storage=config.replay.storage,
        )

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
            noise_seed=derive_seed(seed, "worker", worker_index, "noise"),
            softmax_temp=config.softmax_temp if config.soft_q else None,
            parameter_noise_stddev=config.parameter_noise_initial_stddev if config.parameter_noise else None,
        )

    def _reward_limits(self) -> RewardLimits:
        """Return ``clip_rewards``, with null decided by the env."""
        given = self.config.clip_rewards
        if given is None:
            return self.config.preprocessor_pref == "deepmind" and is_atari(self.env_config.env)
        return given

    def _worker_arguments(self, worker_index: int, seed: int, num_threads: int | None) -> tuple[Any, ...]:
        config = self.config
        rollout = RolloutConfig(
            fragment_length=config.sample_batch_size,
            n_step=config.n_step,
            gamma=config.gamma,
            clip_rewards=self._reward_limits(),
            batch_mode=config.batch_mode,
            sample_async=config.sample_async,
            observation_filter=self.filters.of_worker(worker_index),
        )
        return (
            partial(make_vector_env, self.env_config, config.num_envs_per_worker),
            partial(
                DQNPolicy,
                self.network_config(),
                config.worker_side_prioritization,
                self._policy_exploration(worker_index, seed),
                num_threads,
            ),
            self.epsilon_schedule(worker_index),
            rollout,
            worker_index,
            seed,
            self.row_writer(worker_index),
        )


class DQNAgent(DQNAgentBase[DQNConfig]):
    """DQN (Mnih et al. 2015) with one replay shard in the learner's process."""

    target_counts_trained = False

    def make_optimizer(self) -> PolicyOptimizer:
        # The workers overlap with the update but never act with weights older than the last one.
        self.source = self.make_source(queue_depth=1, max_weight_sync_delay=1)
        shard = ReplayShard(self.replay_config(1), derive_seed(self.stream_seed, "replay", 0))
        round_size = max(self.config.num_workers, 1)
        pacing = Pacing(self.config.training_intensity, self.config.train_batch_size)
        optimizer = SyncReplayOptimizer(
            self.pool, self.source, shard, self.learner, round_size, self.beta_schedule(), pacing
        )
        optimizer.start()
        return optimizer


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


def _device(num_gpus: float) -> str:
    if num_gpus == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise ResourceError(f"num_gpus is {num_gpus:g}, but this torch sees no GPU", "-o config.num_gpus=0")
    return "cuda"
