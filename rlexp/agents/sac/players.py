"""The policies of SAC: networks, and the distributions that actions are drawn from. No torch is imported here."""

from __future__ import annotations

import math
from functools import cached_property

import gymnasium as gym

from rlexp.agents.ddpg.exploration import Exploration
from rlexp.agents.ddpg.policy import PolicyNetworkPolicies
from rlexp.config.keys.sac import LayersKeys, SACConfig
from rlexp.envs.spaces import is_continuous
from rlexp.errors import UsageError
from rlexp.models.action_distributions import CategoricalActions, SquashedGaussianActions
from rlexp.models.network_config import LayersConfig

SHARE_OF_UNIFORM_ENTROPY = 0.98
"""The share of the largest entropy that a policy of discrete actions is adapted to (Christodoulou 2019, code)."""


class SACPolicies(PolicyNetworkPolicies[SACConfig]):
    """The policies of SAC."""

    @cached_property
    def actions(self) -> SquashedGaussianActions | CategoricalActions:
        space = self.action_space
        if is_continuous(space):
            return SquashedGaussianActions(space.shape, str(space.dtype))
        if isinstance(space, gym.spaces.Discrete):
            return CategoricalActions((int(space.n),), (int(space.start),), (), str(space.dtype))
        raise UsageError(f"SAC cannot choose actions of the space {space}", "wrap the env, or use PPO")

    @property
    def layers(self) -> tuple[LayersConfig, LayersConfig]:
        return _layers(self.config.policy_model_config), _layers(self.config.q_model_config)

    @property
    def target_entropy(self) -> float:
        """The entropy that the policy is adapted to; ``auto`` is decided by the actions."""
        given, actions = self.config.resolved_target_entropy, self.actions
        if given is not None:
            return given
        if isinstance(actions, CategoricalActions):
            return SHARE_OF_UNIFORM_ENTROPY * math.log(actions.num_inputs)
        return -float(actions.num_numbers)

    def exploration(self, index: int, num_players: int, seed: int) -> Exploration:
        return Exploration(seed, self.config.pure_exploration_steps)


def _layers(keys: LayersKeys) -> LayersConfig:
    return LayersConfig(keys.fcnet_hiddens, keys.fcnet_activation)
