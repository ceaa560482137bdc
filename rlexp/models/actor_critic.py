"""The actor-critic network: what a policy's distribution is made of, and the value of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.torsos import make_torso

HIDDEN_NORM, POLICY_HEAD_NORM, VALUE_HEAD_NORM = 1.0, 0.01, 1.0
"""Norms of the first weights of each unit. With such a small one, the first policy is nearly uniform."""


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
            inputs = torch.cat([inputs, self.log_std.expand(len(inputs), -1)], dim=1)
        values: Tensor = self.value_head(features if self.value_torso is None else self.value_torso(obs))
        return inputs, values.squeeze(1)


def _initialise(network: ActorCritic) -> None:
    """Draw the first weights as RLlib did: each unit of a linear layer has weights of a given norm, biases are 0."""
    norms = {network.policy_head: POLICY_HEAD_NORM, network.value_head: VALUE_HEAD_NORM}
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            with torch.no_grad():
                module.weight *= norms.get(module, HIDDEN_NORM) / module.weight.norm(dim=1, keepdim=True)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
