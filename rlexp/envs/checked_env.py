"""Errors with env and line for exceptions of an env or a user's vector env, and for results against Gymnasium's rules.

``make`` puts a CheckedEnv around each env as its user gave it, and around each of the user's wrappers. CheckedVectorEnv
is for vector envs, which must also begin the next episode as rlexp expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rlexp.errors import EnvError, RlexpError
from rlexp.sample_batch import Array
from rlexp.user_code.finding import raised_by_user

if TYPE_CHECKING:
    Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    Wrapper = VectorWrapper  # Gymnasium 1.3 has no types for it
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
"""Stands for the shape of observations that are not arrays, and differs from every array's."""


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Passes calls on; raises EnvError for exceptions of ``env``, and for results of another kind or shape."""

    def __init__(self, env: gym.Env[Any, Any], name: str, part: str = "env") -> None:
        """Initialise. ``name`` is the env's in an experiment; ``part`` is the part of it that the user must correct.

        Raises EnvError if it has no spaces.
        """
        _require_spaces(env, f"env {name}", ("observation_space", "action_space"))
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
        # Most results have exactly these types; the first comparison costs half a microsecond a step.
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
        except gym.error.Error:  # for example a missing library, which it names
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
        if not has_form(space, obs):
            raise self._unexpected(method, misfit(space, obs))
        if not isinstance(info, dict):
            raise self._unexpected(method, f"an info of {_kind(info)}, not a dict")

    def _check_flags(self, **flags: Any) -> None:
        for name, value in flags.items():
            if not isinstance(value, bool | np.bool_ | int):
                raise self._unexpected("step", f"{name}: {_kind(value)}, not a bool")

    def _unexpected(self, method: str, what: str) -> EnvError:
        return EnvError(f"env {self._name}: {method} returned {what}", f"correct {method} of the {self._part}")


def _require_spaces(env: object, shown: str, attributes: tuple[str, ...]) -> None:
    for attribute in attributes:
        if not isinstance(getattr(env, attribute, None), gym.Space):
            raise EnvError(
                f"{shown} has no {attribute}: it must be a gymnasium.Space", f"set self.{attribute} in __init__"
            )


def given_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an env as its user gave it, without the wrappers of rlexp."""
    while not isinstance(env, CheckedEnv):
        assert isinstance(env, gym.Wrapper)
        env = env.env
    return env.env


def env_error(name: str, error: BaseException, part: str = "env") -> EnvError:
    """Return the error for an exception of env ``name``, with the line of the user's code; an EnvError unchanged.

    ``part`` is the part that the user must correct: the env, or a wrapper.
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


def has_form(space: gym.Space[Any], obs: Any) -> bool:
    """Return whether an observation has the parts and shapes of its space, and a Box whatever values."""
    if isinstance(space, Dict):
        return isinstance(obs, Mapping) and all(key in obs and has_form(part, obs[key]) for key, part in space.items())
    if isinstance(space, Tuple):
        parts = space.spaces
        fits = isinstance(obs, tuple | list) and len(obs) == len(parts)
        return fits and all(has_form(part, item) for part, item in zip(parts, obs, strict=True))
    if isinstance(space, Box):
        return bool(np.shape(obs) == space.shape)
    if isinstance(space, Discrete):
        return bool(space.contains(obs))
    if isinstance(space, MultiDiscrete | MultiBinary):
        strays = _strays(space, obs)
        return strays is not None and not strays.size
    return True


def _strays(space: MultiDiscrete | MultiBinary, obs: Any) -> Array | None:
    """Return the numbers of an observation that are beyond its space's; None if it has another shape or kind."""
    try:
        numbers = np.asarray(obs)
    except ValueError:  # lists of different lengths
        return None
    if numbers.shape != space.shape or numbers.dtype.kind not in "biuf":
        return None
    first, counts = (space.start, space.nvec) if isinstance(space, MultiDiscrete) else (0, 2)
    is_stray = (numbers < first) | (numbers >= first + counts)
    if numbers.dtype.kind == "f":
        is_stray |= numbers % 1 != 0
    return numbers[is_stray]


def misfit(space: gym.Space[Any], obs: Any, where: str = "") -> str:
    """Return the first part of an observation that does not have the form of its space."""
    if isinstance(space, Dict) and isinstance(obs, Mapping):
        missing = [key for key in space.spaces if key not in obs]
        if missing:
            return f"an observation{where} without {missing[0]!r}, which is in its observation_space"
        key = next(key for key, part in space.items() if not has_form(part, obs[key]))
        return misfit(space[key], obs[key], f"{where}[{key!r}]")
    if isinstance(space, Tuple) and isinstance(obs, tuple | list) and len(obs) == len(space.spaces):
        pairs = list(zip(space.spaces, obs, strict=True))
        index = next(index for index, (part, item) in enumerate(pairs) if not has_form(part, item))
        return misfit(*pairs[index], f"{where}[{index}]")
    expected = f"has the shape {space.shape}" if isinstance(space, Box) else f"is {space}"
    strays = _strays(space, obs) if isinstance(space, MultiDiscrete | MultiBinary) else None
    given = f"of {_kind(obs)}" if strays is None else f"with {strays[0]} in it"
    return f"an observation{where} {given}, but its observation_space{where} {expected}"


def _kind(value: Any) -> str:
    """Return the kind of a value, for a message."""
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"type {type(value).__name__} with {len(value)} items"
    text = repr(value)
    return f"type {type(value).__name__}" + (f" ({text})" if value is not None and len(text) <= 40 else "")


HOW_TO_RESET: Final = (
    'set metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}: the step after an episode\'s end ignores its action '
    "and returns the first observation of the next one, reward 0 and no end"
)


class CheckedVectorEnv(Wrapper):
    """Passes calls on; raises EnvError for exceptions of ``vector``, and for results of another kind or shape."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], name: str, num_envs: int) -> None:
        """Initialise; ``name`` is the env's in an experiment.

        Raises EnvError if it has no spaces, another number of envs, or autoresets other than NEXT_STEP.
        """
        _require_spaces(vector, f"vector env {name}", ("single_observation_space", "single_action_space"))
        if getattr(vector, "num_envs", None) != num_envs:
            message = f"vector env {name} has num_envs {getattr(vector, 'num_envs', None)}, not {num_envs}"
            raise EnvError(message, "set self.num_envs to the argument num_envs of __init__")
        mode = (vector.metadata or {}).get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            message = f"vector env {name} resets in autoreset_mode {mode}, but rlexp needs AutoresetMode.NEXT_STEP"
            raise EnvError(message, HOW_TO_RESET)
        super().__init__(vector)
        self._name = name
        self._ended: Array = np.zeros(num_envs, bool)
        space = vector.single_observation_space
        self._shape = (num_envs, *space.shape) if isinstance(space, Box) else None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self.env.reset(seed=seed, options=options)
        except BaseException as error:
            raise env_error(self._name, error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._unexpected("reset", f"{type(result).__name__}, not a tuple ({RESET_RESULT})")
        self._check("reset", *result)
        self._ended = np.zeros(self.num_envs, bool)
        return result

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        try:
            result = self.env.step(actions)
        except BaseException as error:
            raise env_error(self._name, error) from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._unexpected("step", f"{type(result).__name__}, not a tuple ({STEP_RESULT})")
        obs, rewards, terminated, truncated, infos = result
        self._check("step", obs, infos)
        self._check_column("rewards", rewards, "biuf")
        self._check_column("terminated", terminated, "b")
        self._check_column("truncated", truncated, "b")
        self._check_autoreset(terminated | truncated)
        return obs, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        try:
            super().close(**kwargs)
        except BaseException as error:
            raise env_error(self._name, error) from error

    def _check(self, method: str, obs: Any, infos: Any) -> None:
        if self._shape is not None and np.shape(obs) != self._shape:
            raise self._unexpected(method, f"observations of shape {np.shape(obs)}, not {self._shape}")
        if not isinstance(infos, Mapping):
            raise self._unexpected(method, f"infos of type {type(infos).__name__}, not a dict")

    def _check_column(self, name: str, values: Any, kinds: str) -> None:
        shape = (self.num_envs,)
        if isinstance(values, np.ndarray) and values.shape == shape and values.dtype.kind in kinds:
            return
        kind = f"shape {values.shape} and dtype {values.dtype}" if isinstance(values, np.ndarray) else type(values)
        expected = "bool" if kinds == "b" else "numbers"
        raise self._unexpected("step", f"{name} of {kind}, not an array of {expected} of shape {shape}")

    def _check_autoreset(self, ended: Array) -> None:
        """Raise EnvError if an episode ends in its first step, which only resets."""
        if (ended & self._ended).any():
            message = f"vector env {self._name}: an episode ended in the step after the end of another, which resets"
            raise EnvError(message, HOW_TO_RESET)
        self._ended = ended

    def _unexpected(self, method: str, what: str) -> EnvError:
        return EnvError(f"vector env {self._name}: {method} returned {what}", f"correct {method} of the vector env")
