"""Torsos: from an observation to features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "silu": nn.SiLU,
    "linear": nn.Identity,
}


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Return linear layers ``sizes[0] -> ... -> sizes[-1]``, each followed by ``activation``."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
