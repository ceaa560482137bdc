"""EnvPool's tasks, ``envpool:Pong-v5``: envs in C++ that a pool of threads steps together."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlexp.config.keys.env_ids import ENVPOOL
from rlexp.envs.registry import EnvConfig
from rlexp.errors import UsageError

Array = NDArray[Any]
Seeds = int | list[int | None] | None

OWN_ARGUMENTS: Final = ("env_type", "num_envs", "batch_size", "seed", "num_threads", "max_episode_steps")
"""Arguments of ``envpool.make`` that other keys determine, or that can have only one value."""
IMAGE_RANK: Final = 3
LARGEST_SEED: Final = 2**31 - 1


def is_task(env: str) -> bool:
    """Return whether an env's name is a task of EnvPool."""
    return env.startswith(ENVPOOL)


def make_pool(config: EnvConfig, num_envs: int, horizon: int | None = None) -> EnvPoolEnv:
    """Make ``num_envs`` envs of a task; raises UsageError if EnvPool or the task is missing, or for an unknown key.

    ``horizon`` truncates episodes after so many steps, if the task does not do so before.
    """
    try:
        tasks = _library().list_all_envs()
    except ImportError as error:
        raise UsageError(f"env {config.env} needs EnvPool: {error}", "pip install 'rlexp[envpool]'") from error
    task = config.env.removeprefix(ENVPOOL)
    if task not in tasks:
        close = difflib.get_close_matches(task, tasks, n=1)
        hint = f"did you mean {ENVPOOL}{close[0]}?" if close else "envpool.list_all_envs() has the names"
        raise UsageError(f"env {config.env}: EnvPool has no task {task}", hint)
    given = sorted(set(OWN_ARGUMENTS) & set(config.env_config))
    if given:
        message = f"env {config.env}: rlexp sets {given[0]} itself, so env_config cannot have it"
        raise UsageError(
            message, "horizon cuts episodes; num_envs_per_worker, seed and num_cpus_per_worker do the rest"
        )
    arguments = {**config.env_config, "num_threads": min(config.num_threads, num_envs)}
    if horizon is not None:
        limit = _library().make_spec(task).config.max_episode_steps
        arguments["max_episode_steps"] = min(horizon, limit)
    return EnvPoolEnv(task, arguments, num_envs)


def _library() -> Any:
    """Return EnvPool; its import takes a second, and raises ImportError if it is missing."""
    return importlib.import_module("envpool")


class EnvPoolEnv(VectorEnv[Array, Array, Array]):
    """M envs of a task; owns the pool, with its threads.

    A pool gets its seed when it is made, so each reset with a seed makes a new pool. Images ``[C, H, W]`` are shown as
    ``[H, W, C]``. Infos are left out.
    """

    def __init__(self, task: str, arguments: Mapping[str, Any], num_envs: int) -> None:
        """Raise UsageError for arguments that the task does not take."""
        self._task, self._arguments = task, dict(arguments)
        self._pool: Any = None
        self.num_envs = num_envs
        space, self.single_action_space = self._spaces()
        is_image = isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == IMAGE_RANK
        self._shows_channels_first = is_image
        self.single_observation_space = _channels_last(space) if is_image else space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = arguments.get("render_mode")

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = seed[0] if isinstance(seed, list) else seed
        if first is None and self._pool is None:
            first = int(self.np_random.integers(LARGEST_SEED))
        if first is not None:
            self.close_extras()
            self._pool = self._made(first % LARGEST_SEED)
        obs, _ = self._pool.reset()
        return self._observations(obs), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        sent = np.ascontiguousarray(actions, self.single_action_space.dtype)
        obs, rewards, terminated, truncated, _ = self._pool.step(sent)
        return self._observations(obs), rewards, terminated, truncated, {}

    def render(self) -> Any:
        """Return a picture of each env."""
        return self._pool.render()

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Return EnvPool's observation and action space of an env."""
        with _without_advice():
            try:
                spec = _library().make_spec(self._task, num_envs=self.num_envs, **self._arguments)
            except (AssertionError, KeyError, TypeError, ValueError) as error:
                message = f"env {ENVPOOL}{self._task}: {type(error).__name__}: {error}"
                raise UsageError(message, "check env_config: its keys are the arguments of envpool.make") from error
            return spec.gymnasium_observation_space, spec.gymnasium_action_space

    def _made(self, seed: int) -> Any:
        with _without_advice():
            pool = _library().make(self._task, "gymnasium", num_envs=self.num_envs, seed=seed, **self._arguments)
            assert pool.observation_space is not None  # made when it is first asked for, with that advice
        return pool

    def _observations(self, obs: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(obs, 1, -1)) if self._shows_channels_first else obs


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence Gymnasium's warning about the precision of EnvPool's bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        yield


def _channels_last(space: gym.Space[Any]) -> Box:
    assert isinstance(space, Box)
    return Box(np.moveaxis(space.low, 0, -1), np.moveaxis(space.high, 0, -1), dtype=np.uint8)
