"""Envs whose every observation, reward and ending is known beforehand, and those that fail as a sweep must outlive."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Array = NDArray[Any]

COUNTING_ENV = "tests.lab.envs:CountingEnv"
COUNTING_VECTOR_ENV = "tests.lab.envs:CountingVectorEnv"
IDENTITY_ENV = "tests.lab.envs:IdentityEnv"
UNEVEN_ENV = "tests.lab.envs:UnevenEnv"
RAISING_ENV = "tests.lab.envs:RaisingEnv"
CONTINUOUS_ENV = "tests.lab.envs:ContinuousEnv"
IMAGE_ENV = "tests.lab.envs:ImageEnv"
ENDLESS_ENV = "tests.lab.envs:EndlessEnv"
FILMED_ENV = "tests.lab.envs:FilmedEnv"
PIXEL_ENV = "tests.lab.envs:PixelEnv"
OPAQUE_ENV = "tests.lab.envs:OpaqueEnv"

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


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """CountingEnvs that step together, as a class of vector envs that a user wrote; ``autoreset`` is its mode."""

    def __init__(self, num_envs: int, autoreset: str = "NextStep") -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode(autoreset)}
        self.single_observation_space = Box(0.0, float(ENV_IDS), (3,), np.float32)
        self.single_action_space = Discrete(1000)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs = np.zeros((num_envs, 3), np.float32)
        self._ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            seeds = seed if isinstance(seed, list) else range(seed, seed + self.num_envs)
            self._obs[:, 0], self._obs[:, 1] = [each % ENV_IDS for each in seeds], -1
        self._obs[:, 1] += 1
        self._obs[:, 2] = 0
        self._ended[:] = False
        return self._obs.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        begins = self._ended
        self._obs[begins, 1] += 1
        self._obs[:, 2] = np.where(begins, 0, self._obs[:, 2] + 1)
        episodes, steps = self._obs[:, 1].astype(int), self._obs[:, 2]
        ended = ~begins & (steps == [episode_length(episode) for episode in episodes])
        terminates = np.array([episode_terminates(episode) for episode in episodes])
        self._ended = ended
        return self._obs.copy(), steps.astype(np.float64), ended & terminates, ended & ~terminates, {}


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


class FatefulEnv(EndlessEnv):
    """Episodes of ten steps that pay 1 each; at its hundredth step it meets its ``fate``."""

    def __init__(self, fate: str = "none", pay: float = 1.0) -> None:
        super().__init__()
        self._fate, self._pay = fate, pay
        self._steps_left = 100

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        self._steps_left -= 1
        is_due = self._steps_left <= 0
        if is_due and self._fate == "raise":
            raise RuntimeError("this env raises")
        if is_due and self._fate == "hang":
            time.sleep(3600)
        reward = float("nan") if is_due and self._fate == "nan" else self._pay
        return obs, reward, self._step >= 10, False, info
