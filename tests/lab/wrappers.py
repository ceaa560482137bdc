"""Wrappers, preprocessors and envs that an experiment may name as its user's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from rlexp.envs import Preprocessor
from tests.lab.envs import CountingEnv

Array = NDArray[Any]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Unchanged(gym.Wrapper[Any, Any, Any, Any]):
    """Changes nothing."""


class CountingEnvOfVectors(CountingEnv):
    """A CountingEnv that takes the argument of the vector envs."""

    def __init__(self, autoreset: str = "NextStep") -> None:
        super().__init__()


class Scaled(gym.ObservationWrapper[Any, Any, Any]):
    """Multiplies observations."""

    def __init__(self, env: gym.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def observation(self, observation: Array) -> Array:
        return np.asarray(observation * self.factor, np.float32)


class Plus(Scaled):
    """Adds to observations."""

    def observation(self, observation: Array) -> Array:
        return np.asarray(observation + self.factor, np.float32)


class Paid(gym.RewardWrapper[Any, Any]):
    """Pays the same for each step."""

    def __init__(self, env: gym.Env[Any, Any], reward: float = 7.0) -> None:
        super().__init__(env)
        self._reward = reward

    def reward(self, reward: Any) -> float:
        return self._reward


class Faulty(gym.Wrapper[Any, Any, Any, Any]):
    """Does one thing wrong."""

    def __init__(self, env: gym.Env[Any, Any], fault: str) -> None:
        super().__init__(env)
        if fault == "raises when made":
            raise KeyError("depth")
        self._fault = fault

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._fault == "raises":
            raise ValueError("no such tile")
        return (obs[:2] if self._fault == "shape" else obs), reward, terminated, truncated, info


class Cropped(gym.ObservationWrapper[Any, Any, Any]):
    """Cuts images to their upper left corner."""

    def __init__(self, env: gym.Env[Any, Any], side: int) -> None:
        super().__init__(env)
        self._side = side
        self.observation_space = Box(0, 255, (side, side, 3), np.uint8)

    def observation(self, observation: Array) -> Array:
        return observation[: self._side, : self._side]


class InTwoParts(gym.ObservationWrapper[Any, Any, Any]):
    """Shows observations as a Dict."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        part = Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = Dict({"episode": part, "step": part})

    def observation(self, observation: Array) -> dict[str, Array]:
        return {"episode": observation[1:2], "step": observation[2:3]}


class Only(Preprocessor):
    """Shows one number of an observation, multiplied."""

    def __init__(self, observation_space: gym.Space[Any], index: int = 2, factor: float = 1.0) -> None:
        super().__init__(observation_space)
        self._index, self._factor = index, factor
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)

    def transform(self, observation: Array) -> Array:
        return np.array([observation.reshape(-1)[self._index] * self._factor], np.float32)


class FaultyPreprocessor(Only):
    """Does one thing wrong."""

    def __init__(self, observation_space: gym.Space[Any], fault: str) -> None:
        super().__init__(observation_space)
        self._fault = fault
        if fault == "no space":
            del self.observation_space

    def transform(self, observation: Array) -> Array:
        if self._fault == "raises":
            raise ZeroDivisionError("division by zero")
        return np.zeros(5, np.float32) if self._fault == "shape" else super().transform(observation)


class OfRLlib:
    """Has the form of RLlib's preprocessors."""

    def _init_shape(self, obs_space: gym.Space[Any], options: dict[str, Any]) -> tuple[int, ...]:
        return (1,)


def not_a_class(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Is what a file must not call."""
    raise AssertionError("this was called")
