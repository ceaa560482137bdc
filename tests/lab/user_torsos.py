"""Torsos as users write them: good ones, and those that are refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

DENSE = "tests.lab.user_torsos:Dense"
NORMALISED = "tests.lab.user_torsos:Normalised"


class Dense(nn.Module):
    """The fully connected layers of ``fcnet_hiddens``; what it saw last is kept."""

    def __init__(self, observation_space: gym.spaces.Box, hiddens: tuple[int, ...] = (16,)) -> None:
        super().__init__()
        sizes = (int(np.prod(observation_space.shape)), *hiddens)
        layers = (layer for fan_in, fan_out in pairwise(sizes) for layer in (nn.Linear(fan_in, fan_out), nn.SiLU()))
        self.layers = nn.Sequential(nn.Flatten(), *layers)
        self.num_features = sizes[-1]
        self.space = observation_space
        self.seen = torch.zeros(0)

    def forward(self, obs: Tensor) -> Tensor:
        self.seen = obs
        features: Tensor = self.layers(obs.to(torch.float32))
        return features


class Normalised(nn.Module):
    """Has statistics of batches, and features that drop out while it learns."""

    num_features = 8

    def __init__(self, observation_space: gym.spaces.Box, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(int(np.prod(observation_space.shape)))
        self.linear = nn.LazyLinear(self.num_features)
        self.dropout = nn.Dropout(dropout)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.dropout(torch.tanh(self.linear(self.norm(obs.flatten(1)))))
        return features


class Projected(nn.Module):
    """Random features, which are learned from but do not change: a buffer, and a layer with two names."""

    num_features = 8

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__()
        self.projection: Tensor
        self.register_buffer("projection", torch.randn(int(np.prod(observation_space.shape)), 8))
        self.mix = nn.Linear(8, 8)
        self.again = self.mix

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.again(self.mix(obs.flatten(1) @ self.projection))
        return features


class Bad(nn.Module):
    """Is wrong in one of many ways."""

    def __init__(self, observation_space: gym.spaces.Box, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(observation_space.shape[0], 4)
        if how == "raises when made":
            raise ValueError("no such maze")
        if how != "no size":
            self.num_features: Any = 5 if how == "wrong size" else "4" if how == "size is text" else 4
        if how == "double":
            self.double()
        if how == "integer buffer":
            self.register_buffer("mask", torch.ones(4, dtype=torch.int64))

    def forward(self, obs: Tensor) -> Any:
        features = self.linear(obs.to(self.linear.weight.dtype))
        match self.how:
            case "raises":
                raise RuntimeError("shapes do not fit\nsecond line")
            case "tuple":
                return features, None
            case "squeezes":
                return features.squeeze()
            case "nan":
                return features * torch.nan
            case "integers":
                return features.long()
            case "fails while it learns" if self.training:
                raise RuntimeError("no labels")
        return features


class NoModule:
    """No torch.nn.Module."""

    num_features = 4
