"""Noisy linear layers: exploration by learned noise in the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry factorised Gaussian noise (Fortunato et al. 2018, section 3).

    ``w = mu_w + sigma_w * f(eps_out) f(eps_in)^T`` and ``b = mu_b + sigma_b * f(eps_out)`` with
    ``f(x) = sign(x) sqrt(|x|)``. In training mode the noise of the last ``resample`` acts; in
    evaluation mode there is none. The noise is no parameter and not part of the state.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, fan_in: int, fan_out: int, sigma0: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight_mu = nn.Parameter(torch.empty(fan_out, fan_in).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((fan_out, fan_in), sigma0 * bound))
        self.bias_mu = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))
        self.bias_sigma = nn.Parameter(torch.full((fan_out,), sigma0 * bound))
        self.register_buffer("noise_in", torch.zeros(fan_in), persistent=False)
        self.register_buffer("noise_out", torch.zeros(fan_out), persistent=False)

    def resample(self, generator: torch.Generator) -> None:
        """Draw fresh noise from a generator on the layer's device."""
        for noise in (self.noise_in, self.noise_out):
            noise.normal_(generator=generator)
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``[B, fan_in]`` to ``[B, fan_out]``."""
        if not self.training:
            return functional.linear(features, self.weight_mu, self.bias_mu)
        weight = self.weight_mu + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(features, weight, self.bias_mu + self.bias_sigma * self.noise_out)
