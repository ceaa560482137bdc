"""The policies that play checkpoints of the DQN family. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlexp.agents.dqn.exploration import EpsilonGreedyPolicy
from rlexp.agents.dqn.players import q_network_config
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.policies import Policies
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_modules import NO_MODULES, UserModules
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy

if TYPE_CHECKING:
    from rlexp.agents.export.exportable import Exportable


class DQNPolicies(Policies[DQNConfig]):
    """The policies of DQN and APEX."""

    @classmethod
    def make_policy(
        cls,
        config: DQNConfig,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> DQNPolicy:
        return DQNPolicy(q_network_config(config, observation_space, action_space, modules))

    @classmethod
    def exploring_player(
        cls, config: DQNConfig, policy: Policy, action_space: gym.Space[Any], num_envs: int, seed: int
    ) -> ActingPolicy:
        assert isinstance(action_space, gym.spaces.Discrete)
        epsilons = np.full(num_envs, config.evaluation_epsilon)
        return EpsilonGreedyPolicy(policy, epsilons, int(action_space.n), seed)

    @classmethod
    def exportable(
        cls,
        config: DQNConfig,
        policy: Policy,
        weights: Weights,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> Exportable:
        from rlexp.agents.dqn.exportable_policy import exportable_q_network  # it loads torch

        assert isinstance(policy, DQNPolicy)
        network = q_network_config(config, observation_space, action_space, modules)
        return exportable_q_network(network, policy, weights)

    @classmethod
    def evaluation_exploration(cls, config: DQNConfig) -> Mapping[str, float]:
        return {"epsilon": config.evaluation_epsilon}
