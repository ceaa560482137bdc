"""What a user's vector env raises, or returns against Gymnasium's rules, is an error that names env and line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from rlexp.envs.checked_env import RESET_RESULT, STEP_RESULT, env_error
from rlexp.errors import EnvError

Array = NDArray[Any]
if TYPE_CHECKING:
    Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    Wrapper = VectorWrapper  # Gymnasium 1.3 has no types for it
SPACES: Final = ("single_observation_space", "single_action_space")
HOW_TO_RESET: Final = (
    'set metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}: the step after an episode\'s end ignores its action '
    "and returns the first observation of the next one, reward 0 and no end"
)


class CheckedVectorEnv(Wrapper):
    """Passes everything on; raises EnvError for what ``vector`` raises, and for results of another kind or shape."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], name: str, num_envs: int) -> None:
        """``name`` is what an experiment calls it.

        Raises EnvError where it has no spaces, another number of envs, or other autoresets than NEXT_STEP.
        """
        for attribute in SPACES:
            if not isinstance(getattr(vector, attribute, None), gym.Space):
                message = f"vector env {name} has no {attribute}: it must be a gymnasium.Space"
                raise EnvError(message, f"set self.{attribute} in __init__")
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
        """Raise EnvError where an episode ends in the step that began it, which only resets."""
        if (ended & self._ended).any():
            message = f"vector env {self._name}: an episode ended in the step after the end of another, which resets"
            raise EnvError(message, HOW_TO_RESET)
        self._ended = ended

    def _unexpected(self, method: str, what: str) -> EnvError:
        return EnvError(f"vector env {self._name}: {method} returned {what}", f"correct {method} of the vector env")
