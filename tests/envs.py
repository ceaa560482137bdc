"""Environments whose every observation, reward and ending is known beforehand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Array = NDArray[Any]

COUNTING_ENV = "tests.envs:CountingEnv"
IDENTITY_ENV = "tests.envs:IdentityEnv"
UNEVEN_ENV = "tests.envs:UnevenEnv"
RAISING_ENV = "tests.envs:RaisingEnv"
CONTINUOUS_ENV = "tests.envs:ContinuousEnv"
IMAGE_ENV = "tests.envs:ImageEnv"
ENDLESS_ENV = "tests.envs:EndlessEnv"
FILMED_ENV = "tests.envs:FilmedEnv"
PIXEL_ENV = "tests.envs:PixelEnv"
OPAQUE_ENV = "tests.envs:OpaqueEnv"

EPISODE_LENGTHS = (3, 7, 12)
"""Lengths of a CountingEnv's episodes, in turn."""
ENV_IDS = 2**20
"""CountingEnv takes its seed modulo this, so that float32 holds its id exactly."""


class CountingEnv(gym.Env[Any, Any]):
    """Tells where it is: observations are ``[env id, episode, step]``, the step after s pays s + 1.

    Episodes last 3, 7 and 12 steps in turn; the odd ones terminate, the even ones are truncated.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, float(ENV_IDS), (3,), np.float32)
        self.action_space = Discrete(1000)
        self._env_id = 0
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env_id = seed % ENV_IDS
            self._episode = -1
        self._episode += 1
        self._step = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == episode_length(self._episode)
        terminates = episode_terminates(self._episode)
        return self._observation(), float(self._step), ended and terminates, ended and not terminates, {}

    def _observation(self) -> Array:
        return np.array([self._env_id, self._episode, self._step], np.float32)


def episode_length(episode: int) -> int:
    """Return how many steps a CountingEnv's episode lasts."""
    return EPISODE_LENGTHS[episode % len(EPISODE_LENGTHS)]


def episode_terminates(episode: int) -> bool:
    """Return whether a CountingEnv's episode terminates; the others are truncated."""
    return episode % 2 == 1


class IdentityEnv(gym.Env[Any, Any]):
    """One-step episodes; the one-hot observation tells which of four actions pays 1."""

    NUM_ACTIONS = 4

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.NUM_ACTIONS,), np.float32)
        self.action_space = Discrete(self.NUM_ACTIONS)
        self._right = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._right)
        return self._draw(), reward, True, False, {}

    def _draw(self) -> Array:
        self._right = int(self.np_random.integers(self.NUM_ACTIONS))
        obs = np.zeros(self.NUM_ACTIONS, np.float32)
        obs[self._right] = 1.0
        return obs


class UnevenEnv(gym.Env[Any, Any]):
    """With an even seed, episodes of 1 step that pay 1; with an odd one, episodes of 9 steps that pay nothing.

    In a vector env, whose envs have consecutive seeds, short-lived and long-lived envs alternate.
    """

    SHORT, LONG = 1, 9

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self._is_short = False
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._is_short = seed % 2 == 0
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == (self.SHORT if self._is_short else self.LONG)
        return np.zeros(1, np.float32), float(self._is_short), ended, False, {}


class RaisingEnv(CountingEnv):
    """Raises at its fifth step."""

    def __init__(self) -> None:
        super().__init__()
        self._steps_left = 5

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise RuntimeError("this env raises")
        return super().step(action)


class LateRaisingEnv(RaisingEnv):
    """Raises at its fiftieth step: after those that are tried before a run."""

    def __init__(self) -> None:
        super().__init__()
        self._steps_left = 50


class ContinuousEnv(CountingEnv):
    """Has an action space that Q-learning cannot play."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)


class ImageEnv(CountingEnv):
    """Shows pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (84, 84, 3), np.uint8)

    def _observation(self) -> Array:
        return np.zeros((84, 84, 3), np.uint8)


class EndlessEnv(CountingEnv):
    """Never ends by itself; each step pays 1."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(2)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observation(), 1.0, False, False, {}


class PixelEnv(gym.Env[Any, Any]):
    """Shows a picture with a bright half, left or right: the action that names it (0, 1) pays 1. One-step episodes."""

    def __init__(self, size: int = 10) -> None:
        self.observation_space = Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = Discrete(2)
        self._size = size
        self._side = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._side)
        return self._draw(), reward, True, False, {}

    def _draw(self) -> Array:
        self._side = int(self.np_random.integers(2))
        picture = np.zeros((self._size, self._size, 3), np.uint8)
        half = self._size // 2
        picture[:, self._side * half : (self._side + 1) * half] = (200, 100, 50)
        return picture


class FilmedEnv(EndlessEnv):
    """Ends after ten steps; renders a picture that grows brighter with each."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as in Gymnasium's envs)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self._step >= 10, False, info

    def render(self) -> Array:
        return np.full((32, 32, 3), 20 * self._step, np.uint8)


class OpaqueEnv(CountingEnv):
    """Keeps something whose state nobody can tell, as a physics engine's."""

    def __init__(self) -> None:
        super().__init__()
        self._engine = object()
