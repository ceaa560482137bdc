"""The Q-network: action values of observations, with a dueling head where wanted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlexp.models.torsos import mlp


@dataclass(frozen=True)
class QNetworkConfig:
    """The shape of a Q-network."""

    observation_size: int
    num_actions: int
    fcnet_hiddens: tuple[int, ...]
    """Sizes of the torso's layers."""
    fcnet_activation: str
    """Activation of the torso; the heads use ReLU."""
    hiddens: tuple[int, ...]
    """Sizes of the layers between torso and output, in the value and in the advantage head."""
    dueling: bool


class QNetwork(nn.Module):
    """Maps observations ``[B, observation_size]`` to action values ``[B, num_actions]``.

    Dueling: ``Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`` (Wang et al. 2016, equation 9).
    """

    def __init__(self, config: QNetworkConfig) -> None:
        super().__init__()
        self.torso = mlp((config.observation_size, *config.fcnet_hiddens), config.fcnet_activation)
        features = (config.fcnet_hiddens or (config.observation_size,))[-1]
        self.advantage_head = _head(features, config.hiddens, config.num_actions)
        self.value_head = _head(features, config.hiddens, 1) if config.dueling else None

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values ``[B, num_actions]``."""
        features = self.torso(obs.to(torch.float32))
        advantages: Tensor = self.advantage_head(features)
        if self.value_head is None:
            return advantages
        value: Tensor = self.value_head(features)
        return value + advantages - advantages.mean(dim=1, keepdim=True)


def _head(features: int, hiddens: tuple[int, ...], outputs: int) -> nn.Sequential:
    sizes = (features, *hiddens)
    return nn.Sequential(*mlp(sizes, "relu"), nn.Linear(sizes[-1], outputs))
