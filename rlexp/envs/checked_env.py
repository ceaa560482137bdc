"""What an env raises, or returns against Gymnasium's rules, is an error that names env and line."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from rlexp.errors import EnvError, RlexpError
from rlexp.user_code.raised import raised_by_user

Step = tuple[Any, Any, bool, bool, dict[str, Any]]
Start = tuple[Any, dict[str, Any]]

STEP_RESULT: Final = "observation, reward, terminated, truncated, info"
RESET_RESULT: Final = "observation, info"
HOW_TO_RENDER: Final = (
    'its class needs the argument render_mode, metadata = {"render_modes": ["rgb_array"]}, and a render method that'
    " returns an image [height, width, 3] of uint8"
)
_HOW_TO_REWARD: Final = "return one number: float(reward.item()) where the reward is an array with one item"
_NOT_A_BOX: Final = (-1,)
"""Stands for the shape of observations that are no arrays, and is none of an array."""


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Passes everything on; raises EnvError for what ``env`` raises, and for results of another kind or shape."""

    def __init__(self, env: gym.Env[Any, Any], name: str, part: str = "env") -> None:
        """``name`` is what an experiment calls the env, and ``part`` what of it is to be corrected.

        Raises EnvError where it has no spaces.
        """
        for attribute in ("observation_space", "action_space"):
            if not isinstance(getattr(env, attribute, None), gym.Space):
                message = f"env {name} has no {attribute}: it must be a gymnasium.Space"
                raise EnvError(message, f"set self.{attribute} in __init__")
        super().__init__(env)
        self._name, self._part = name, part
        space = env.observation_space
        self._shape = space.shape if isinstance(space, Box) else _NOT_A_BOX

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        try:
            result = self.env.reset(seed=seed, options=options)
        except BaseException as error:
            raise env_error(self._name, error, self._part) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._unexpected("reset", f"{_kind(result)}, not a tuple ({RESET_RESULT})")
        self._check("reset", *result)
        return result

    def step(self, action: Any) -> Step:
        try:
            result = self.env.step(action)
        except BaseException as error:
            raise env_error(self._name, error, self._part) from error
        if type(result) is not tuple or len(result) != 5:
            raise self._unexpected("step", f"{_kind(result)}, not a tuple ({STEP_RESULT})")
        obs, reward, terminated, truncated, info = result
        # Most results have exactly these types: what is asked first costs half a microsecond a step.
        if getattr(obs, "shape", None) != self._shape or type(info) is not dict:
            self._check("step", obs, info)
        if type(reward) is not float and not _is_number(reward):
            unexpected = self._unexpected("step", f"a reward of {_kind(reward)}, not a number")
            raise EnvError(unexpected.message, _HOW_TO_REWARD) if hasattr(reward, "item") else unexpected
        if type(terminated) is not bool or type(truncated) is not bool:
            self._check_flags(terminated=terminated, truncated=truncated)
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        try:
            return super().render()
        except gym.error.Error:  # a library is missing, for example: it says which
            raise
        except NotImplementedError as error:
            raise EnvError(f"env {self._name}: its class has no render method", HOW_TO_RENDER) from error
        except BaseException as error:
            raise env_error(self._name, error, self._part) from error

    def close(self) -> None:
        try:
            super().close()
        except BaseException as error:
            raise env_error(self._name, error, self._part) from error

    def _check(self, method: str, obs: Any, info: Any) -> None:
        space = self.env.observation_space
        if not _has_form(space, obs):
            raise self._unexpected(method, _misfit(space, obs))
        if not isinstance(info, dict):
            raise self._unexpected(method, f"an info of {_kind(info)}, not a dict")

    def _check_flags(self, **flags: Any) -> None:
        for name, value in flags.items():
            if not isinstance(value, bool | np.bool_ | int):
                raise self._unexpected("step", f"{name}: {_kind(value)}, not a bool")

    def _unexpected(self, method: str, what: str) -> EnvError:
        return EnvError(f"env {self._name}: {method} returned {what}", f"correct {method} of the {self._part}")


def given_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an env as its user gave it, without what rlexp wrapped around it."""
    while not isinstance(env, CheckedEnv):
        assert isinstance(env, gym.Wrapper)
        env = env.env
    return env.env


def env_error(name: str, error: BaseException, part: str = "env") -> EnvError:
    """Return what an env called ``name`` has raised, with the line of the user's code; an EnvError as it is.

    ``part`` is what of it is to be corrected: the env, or a wrapper.
    """
    if isinstance(error, EnvError):
        return error
    if isinstance(error, RlexpError):
        return EnvError(error.message, error.hint)
    message = f"env {name}: {raised_by_user(error)}"
    if isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in str(error):
        return EnvError(message, "reset must accept the keyword arguments seed and options")
    if not isinstance(error, Exception):
        article = "an" if part == "env" else "a"
        return EnvError(message, f"{article} {part} must not end its process: raise an Exception instead")
    return EnvError(message, f"correct the {part}")


def _is_number(value: Any) -> bool:
    if isinstance(value, Real | np.bool_):
        return True
    return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biuf"


def _has_form(space: gym.Space[Any], obs: Any) -> bool:
    """Return whether an observation has the parts and shapes of its space; values are not looked at."""
    if isinstance(space, Dict):
        return isinstance(obs, Mapping) and all(key in obs and _has_form(part, obs[key]) for key, part in space.items())
    if isinstance(space, Tuple):
        parts = space.spaces
        fits = isinstance(obs, tuple | list) and len(obs) == len(parts)
        return fits and all(_has_form(part, item) for part, item in zip(parts, obs, strict=True))
    if isinstance(space, Box):
        return bool(np.shape(obs) == space.shape)
    if isinstance(space, Discrete):
        return bool(space.contains(obs))
    return True


def _misfit(space: gym.Space[Any], obs: Any, where: str = "") -> str:
    """Return what of an observation without the form of its space is wrong: the first part that is."""
    if isinstance(space, Dict) and isinstance(obs, Mapping):
        missing = [key for key in space.spaces if key not in obs]
        if missing:
            return f"an observation{where} without {missing[0]!r}, which is in its observation_space"
        key = next(key for key, part in space.items() if not _has_form(part, obs[key]))
        return _misfit(space[key], obs[key], f"{where}[{key!r}]")
    if isinstance(space, Tuple) and isinstance(obs, tuple | list) and len(obs) == len(space.spaces):
        pairs = list(zip(space.spaces, obs, strict=True))
        index = next(index for index, (part, item) in enumerate(pairs) if not _has_form(part, item))
        return _misfit(*pairs[index], f"{where}[{index}]")
    expected = f"has the shape {space.shape}" if isinstance(space, Box) else f"is {space}"
    return f"an observation{where} of {_kind(obs)}, but its observation_space{where} {expected}"


def _kind(value: Any) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"type {type(value).__name__} with {len(value)} items"
    text = repr(value)
    return f"type {type(value).__name__}" + (f" ({text})" if value is not None and len(text) <= 40 else "")
