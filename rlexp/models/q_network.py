"""The Q-network: action values of observations, with a dueling head where wanted."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from rlexp.models.noisy import NoisyLinear
from rlexp.models.q_network_config import HeadConfig, QNetworkConfig
from rlexp.models.torsos import make_torso


class QNetwork(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to action values ``[B, num_actions]``.

    Dueling: ``Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`` (Wang et al. 2016, equation 9), with several
    atoms in each logit (Hessel et al. 2018). Distributional: the values are the means of categorical
    distributions over ``support [num_atoms]`` (Bellemare et al. 2017). Noisy heads are noisy in
    training mode only.
    """

    support: Tensor

    def __init__(self, config: QNetworkConfig) -> None:
        super().__init__()
        head = config.head
        self.num_actions, self.num_atoms = config.num_actions, head.num_atoms
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.advantage_head = _head(self.torso.num_features, head, config.num_actions * head.num_atoms)
        self.value_head = _head(self.torso.num_features, head, head.num_atoms) if head.dueling else None
        support = torch.linspace(head.v_min, head.v_max, head.num_atoms)
        self.register_buffer("support", support, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values ``[B, num_actions]``."""
        return self.values(self.outputs(obs))

    def outputs(self, obs: Tensor) -> Tensor:
        """Return what the heads say ``[B, num_actions, num_atoms]``: values if there is one atom, else logits."""
        features = self.torso(obs)
        advantages: Tensor = self.advantage_head(features).unflatten(1, (self.num_actions, self.num_atoms))
        if self.value_head is None:
            return advantages
        value: Tensor = self.value_head(features).unsqueeze(1)
        return value + advantages - advantages.mean(dim=1, keepdim=True)

    def values(self, outputs: Tensor) -> Tensor:
        """Return the action values ``[B, num_actions]`` that ``outputs`` stand for."""
        if self.num_atoms == 1:
            return outputs.squeeze(2)
        return outputs.softmax(dim=2) @ self.support

    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw fresh noise for every noisy layer."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.resample(generator)


def _head(features: int, config: HeadConfig, outputs: int) -> nn.Sequential:
    sizes = (features, *config.hiddens, outputs)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [
            NoisyLinear(fan_in, fan_out, config.sigma0) if config.noisy else nn.Linear(fan_in, fan_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers[:-1])
