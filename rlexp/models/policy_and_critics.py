"""The networks of DDPG, TD3 and SAC in torch: a policy, and critics that share no layers with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlexp.models.network_config import LayersConfig, PolicyAndCriticsConfig
from rlexp.models.torsos import make_torso, mlp


class PolicyNetwork(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to the inputs of the distribution of an action ``[B, K]``."""

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.head = _head(self.torso.num_features, config.policy, config.num_inputs)
        self.masking = config.masking

    def forward(self, obs: Tensor) -> Tensor:
        """Return the inputs ``[B, K]``."""
        masking = self.masking
        inputs: Tensor = self.head(self.torso(obs if masking is None else masking.observations(obs)))
        return inputs if masking is None else masking.of_tensors(inputs, obs)


class CriticNetwork(nn.Module):
    """Maps observations, and continuous actions ``[B, D]`` in -1 to 1, to values.

    Without continuous actions there is a value for each of K actions.
    """

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        num_values = 1 if config.num_numbers else config.num_inputs
        self.head = _head(self.torso.num_features + config.num_numbers, config.critic, num_values)
        self.masking = config.masking

    def forward(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        """Return values ``[B]`` of ``actions [B, D]``, or values ``[B, K]`` of all actions if it is None."""
        features = self.torso(obs if self.masking is None else self.masking.observations(obs))
        if actions is None:
            values: Tensor = self.head(features)
            return values
        values = self.head(torch.cat([features, actions], dim=1))
        return values.squeeze(1)


class CriticNetworks(nn.Module):
    """One critic, or two whose lower value is used (Fujimoto et al. 2018, section 4.2)."""

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.critics = nn.ModuleList(CriticNetwork(config) for _ in range(config.num_critics))

    def each(self) -> list[CriticNetwork]:
        """Return the C critics."""
        return [critic for critic in self.critics if isinstance(critic, CriticNetwork)]

    def forward(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        """Return the values of each of C critics, ``[C, B]`` or ``[C, B, K]``."""
        return torch.stack([critic(obs, actions) for critic in self.critics])

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[B]`` of the first critic."""
        values: Tensor = self.critics[0](obs, actions)
        return values


def _head(features: int, config: LayersConfig, outputs: int) -> nn.Sequential:
    sizes = (features, *config.hiddens)
    return nn.Sequential(*mlp(sizes, config.activation), nn.Linear(sizes[-1], outputs))
