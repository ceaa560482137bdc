"""The policies that play checkpoints of PPO. No torch is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlexp.agents.policies import Policies
from rlexp.agents.ppo.policy import PPOPolicy, StochasticPlayer
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.user_modules import NO_MODULES, UserModules
from rlexp.envs import is_byte_vector
from rlexp.models import ActorCriticConfig, torso_config_of
from rlexp.models.action_distributions import Actions, GaussianActions, actions_of
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy

if TYPE_CHECKING:
    from rlexp.agents.export.exportable import Exportable


class PPOPolicies(Policies[PPOConfig]):
    """The policies of PPO."""

    @classmethod
    def make_policy(
        cls,
        config: PPOConfig,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> PPOPolicy:
        actions = actions_of(action_space)
        return PPOPolicy(actor_critic_config(config, observation_space, actions, modules), actions)

    @classmethod
    def exploring_player(
        cls, config: PPOConfig, policy: Policy, action_space: gym.Space[Any], num_envs: int, seed: int
    ) -> ActingPolicy:
        assert isinstance(policy, PPOPolicy)
        return StochasticPlayer(policy, seed)

    @classmethod
    def exportable(
        cls,
        config: PPOConfig,
        policy: Policy,
        weights: Weights,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> Exportable:
        from rlexp.agents.ppo.exportable_policy import exportable_actor_critic  # it loads torch

        assert isinstance(policy, PPOPolicy)
        actions = actions_of(action_space)
        network = actor_critic_config(config, observation_space, actions, modules)
        return exportable_actor_critic(network, actions, policy, weights)


def actor_critic_config(
    config: PPOConfig, observation_space: gym.Space[Any], actions: Actions, modules: UserModules = NO_MODULES
) -> ActorCriticConfig:
    """Return the shape of the network for an env's (checked) spaces; ``modules`` may be imported for it."""
    assert observation_space.shape is not None
    is_free = config.model.free_log_std and isinstance(actions, GaussianActions)
    return ActorCriticConfig(
        observation_shape=observation_space.shape,
        num_inputs=actions.num_inputs,
        num_free_log_std=actions.num_inputs // 2 if is_free else 0,
        torso=torso_config_of(config, observation_space, modules),
        shares_torso=config.model.vf_share_layers,
        sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observation_space),
    )
