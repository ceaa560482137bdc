"""The pieces of an Ape-X run, made for a config as its agent makes them, so that each can be measured alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from benchmarks.comparison import Work
from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.players import DQNPolicies
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.workers import reward_limits
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import env_config_of
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.rollout.folds import NStep
from rlexp.rollout.recorder import RolloutConfig
from rlexp.rollout.worker import RolloutWorker, WorkerSpec
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

SEED = 0


@dataclass(frozen=True)
class Pieces:
    """Makes the pieces of a run of ``config`` in ``env``."""

    env: str
    config: ApexConfig

    def vector_env(self) -> VectorEnv:
        """Return the envs of one worker."""
        return make_vector_env(env_config_of(self.env, self.config, UserModules()), self.config.num_envs_per_worker)

    def network(self) -> QNetworkConfig:
        """Return the network's shape."""
        vector = self.vector_env()
        vector.close()
        return DQNPolicies(self.config, vector.single_observation_space, vector.single_action_space).network

    def policy(self) -> DQNPolicy:
        """Return a worker's policy with the weights of an untrained network, which explores with every act."""
        network, epsilon = self.network(), ConstantEpsilon((1.0,) * self.config.num_envs_per_worker)
        exploration = PolicyExploration(epsilon, SEED, worker_index=0)
        policy = DQNPolicy(network, exploration, self.config.worker_side_prioritization, num_threads=1)
        torch.manual_seed(SEED)
        parameters = QNetwork(network).named_parameters()
        policy.set_weights({name: parameter.detach().numpy() for name, parameter in parameters})
        return policy

    def worker(self) -> RolloutWorker:
        """Return a worker that plays at random, whatever its policy says: episodes are as long as without one."""
        config = self.config
        rollout = RolloutConfig(
            fragment_length=config.sample_batch_size,
            clip_rewards=reward_limits(config, self.env),
            batch_mode=config.batch_mode,
            sample_async=config.sample_async,
        )
        fold = NStep(config.n_step, config.gamma)
        return RolloutWorker(WorkerSpec(0, SEED, self.vector_env, self.policy, fold, rollout))

    def learner(self) -> DQNLearner:
        """Return the learner, on the CPU."""
        config = self.config
        learner_config = DQNLearnerConfig(
            lr=PiecewiseSchedule(((0, config.lr),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            double_q=config.double_q,
            target_network_update_freq=config.target_network_update_freq,
            target_counts_trained=True,
            device="cpu",
        )
        return DQNLearner(self.network(), learner_config, SEED)

    def batch(self) -> SampleBatch:
        """Return a batch of made-up rows: images are laid out frame by frame, as replay has them."""
        rng, size, network = np.random.default_rng(SEED), self.config.train_batch_size, self.network()

        def observations() -> Array:
            if len(network.observation_shape) == 1:
                return rng.standard_normal((size, *network.observation_shape), np.float32)
            height, width, num_frames = network.observation_shape
            frames: Array = rng.integers(256, size=(size, num_frames, height, width), dtype=np.uint8)
            return frames.transpose(0, 2, 3, 1)

        return SampleBatch(
            {
                OBS: observations(),
                ACTIONS: rng.integers(network.num_actions, size=size),
                REWARDS: rng.random(size, np.float32),
                DISCOUNTS: np.full(size, self.config.gamma**self.config.n_step, np.float32),
                NEW_OBS: observations(),
                IMPORTANCE_WEIGHTS: rng.random(size, np.float32),
            }
        )


def sampling(worker: RolloutWorker) -> Work:
    """Return what samples one fragment."""
    return lambda: worker.sample(0)[1].num_env_steps


def learning(learner: DQNLearner, batch: SampleBatch) -> Work:
    """Return what learns once from ``batch``."""

    def learn() -> int:
        learner.learn_on_batch(batch)
        return len(batch)

    return learn


def stepping(vector: VectorEnv, num_steps: int, policy: DQNPolicy | None) -> Work:
    """Return what takes ``num_steps`` random steps in every env; ``policy`` looks at each observation, to no effect."""
    rng = np.random.default_rng(SEED)
    space = vector.single_action_space
    assert isinstance(space, Discrete)
    num_actions = int(space.n)
    obs, _ = vector.reset(seed=SEED)

    def step() -> int:
        nonlocal obs
        actions = rng.integers(num_actions, size=(num_steps, vector.num_envs))
        num_ended = 0
        for actions_now in actions:
            if policy is not None:
                policy.compute_actions(obs)
            obs, _, terminated, truncated, _ = vector.step(actions_now)
            num_ended += int(np.count_nonzero(terminated | truncated))
        return actions.size - num_ended  # the step after an episode's end is a reset, which workers do not count either

    return step
