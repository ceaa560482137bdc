"""An env whose reward is an argument: evaluations can be given another one than training."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from tests.envs import Array

LENGTH = 10
"""Steps of an episode."""


class PayingEnv(gym.Env[Any, Any]):
    """Pays ``pay`` in each of ten steps, whatever is done."""

    def __init__(self, pay: float = 1.0) -> None:
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._pay, self._steps = pay, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(2, np.float32), self._pay, self._steps == LENGTH, False, {}
