"""Small agents of PPO that train in this process, and envs that they learn within a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.ppo import PPOConfig
from rlexp.runs.checkpoints import Checkpoint
from rlexp.sample_batch import Array

MATCHING_ENV = "tests.unit.agents.ppo.agents:MatchingEnv"
SMALL: Mapping[str, Any] = {
    "num_workers": 0,
    "num_envs_per_worker": 4,
    "sample_batch_size": 16,
    "train_batch_size": 128,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 4,
    "lr": 1e-2,
    "batch_mode": "truncate_episodes",
    "observation_filter": "NoFilter",
    "timesteps_per_iteration": 256,
    "min_iter_time_s": 0.0,
    "model": {"fcnet_hiddens": [16]},
}


class MatchingEnv(gym.Env[Any, Any]):
    """One-step episodes; the observation says which action of the space is right, and others pay less."""

    SPACES: Mapping[str, Space[Any]] = {
        "multi-discrete": MultiDiscrete([3, 2], start=[0, 5]),
        "box": Box(-1.0, 1.0, (2,)),
    }

    def __init__(self, space: str, scale: float = 1.0) -> None:
        self.observation_space = Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = self.SPACES[space]
        self._low, self._size = {
            "multi-discrete": (np.array([0.0, 5.0]), np.array([2.0, 1.0])),
            "box": (np.array([-1.0, -1.0]), np.array([2.0, 2.0])),
        }[space]
        self._right = self._low
        self._scale = scale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        distance = float(np.abs((np.reshape(action, -1) - self._right) / self._size).mean())
        return self._draw(), self._scale * (1.0 - distance), True, False, {}

    def _draw(self) -> Array:
        place = self.np_random.random(len(self._low))
        if not isinstance(self.action_space, Box):
            place = np.round(place * self._size) / self._size
        self._right = self._low + place * self._size
        obs = np.zeros(2, np.float32)
        obs[: len(place)] = 4 * place - 2
        return obs


def make_agent(env: str, changes: Mapping[str, Any], checkpoint: Checkpoint | None = None, seed: int = 3) -> PPOAgent:
    """Return an agent with a configuration that differs from SMALL by ``changes``."""
    return PPOAgent(env, PPOConfig.model_validate({**SMALL, **changes}), InlineTaskPool(), seed, checkpoint)
