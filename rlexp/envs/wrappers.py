"""Wrappers around single envs: images scaled, made grey and stacked; the user's own wrappers and preprocessor.

A Preprocessor is a class of the user that turns observations into what the network sees. Errors of the user's classes
name them.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, Final, TypeGuard, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from rlexp.config.keys.user_code import UserClass
from rlexp.envs.checked_env import CheckedEnv, env_error
from rlexp.envs.registry import Env, EnvConfig
from rlexp.errors import EnvError, UsageError
from rlexp.user_code import classes

Frame = NDArray[np.uint8]

STACKED_FRAMES = 4
"""Frames that one observation shows, as in Mnih et al. 2015."""
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in grey (ITU-R BT.601), which the Arcade Learning Environment uses too."""


def is_image(space: gym.Space[Any]) -> TypeGuard[Box]:
    """Return whether observations are images: bytes ``[H, W, C]``."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def images_in(space: gym.Space[Any]) -> list[str]:
    """Return the names of the images in a ``Dict``."""
    return [name for name, part in space.items() if is_image(part)] if isinstance(space, Dict) else []


class ScaledFrames(gym.ObservationWrapper[Any, Any, Any]):
    """Scales images ``[H, W, C]``, or grey ones ``[H, W]``, to another height and width; grey ones have one channel.

    Each pixel is the mean of the area that it covers, columns first. The result is bit by bit OpenCV's ``INTER_AREA``,
    which scales the frames of the Arcade Learning Environment's own vector env.
    """

    def __init__(self, env: Env, size: tuple[int, int], *, grayscale: bool) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        assert shape is not None
        self._grayscale = grayscale and len(shape) == 3 and shape[2] == len(LUMA)
        self._scale_rows, self._scale_columns = AreaMean(shape[0], size[0]), AreaMean(shape[1], size[1])
        channels = 1 if self._grayscale or len(shape) == 2 else shape[2]
        self._shape = (*size, channels)
        self.observation_space = Box(0, 255, self._shape, np.uint8)

    def observation(self, observation: Frame) -> Frame:
        frame = observation @ LUMA if self._grayscale else observation
        scaled = self._scale_rows(self._scale_columns(frame, axis=1), axis=0)
        pixels: Frame = np.rint(scaled).astype(np.uint8)
        return pixels.reshape(self._shape)


class StackedFrames(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last STACKED_FRAMES frames ``[H, W, C]`` as ``[H, W, 4 C]``, the newest last; at first all equal."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        assert shape is not None
        self._channels = shape[2]
        self._stack = np.zeros((*shape[:2], STACKED_FRAMES * shape[2]), np.uint8)
        self.observation_space = Box(0, 255, self._stack.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self._stack = np.concatenate([frame] * STACKED_FRAMES, axis=2)
        return self._stack, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._stack = np.concatenate([self._stack[:, :, self._channels :], frame], axis=2)
        return self._stack, reward, terminated, truncated, info


class AreaMean:
    """Scales one side of an array from ``pixels`` to ``dim``: each new pixel is the mean of the pixels that it covers.

    A new pixel covers few old ones, so summing these is faster than a matrix product. BLAS would also spread that over
    all cores, which other workers need.
    """

    def __init__(self, pixels: int, dim: int) -> None:
        starts = np.arange(dim)[:, None] * pixels / dim
        ends = starts + pixels / dim
        first = np.floor(starts).astype(np.intp)
        covered = first + np.arange(int((np.ceil(ends) - first).max()))
        shares = np.clip(np.minimum(ends, covered + 1) - np.maximum(starts, covered), 0.0, None) * dim / pixels
        self._covered = covered.clip(max=pixels - 1).T.copy()
        self._shares = shares.T.astype(np.float32)

    def __call__(self, array: NDArray[Any], axis: int) -> NDArray[np.float32]:
        """Return ``array [..., pixels, ...]`` with ``dim`` pixels along ``axis``."""
        shape = (-1,) + (1,) * (array.ndim - 1 - axis)
        scaled: NDArray[np.float32] = self._shares[0].reshape(shape) * array.take(self._covered[0], axis=axis)
        for covered, shares in zip(self._covered[1:], self._shares[1:], strict=True):
            scaled += shares.reshape(shape) * array.take(covered, axis=axis)
        return scaled


class Preprocessor(ABC):
    """The base of ``config.model.custom_preprocessor``: made for each env, with the arguments in the file.

    A subclass sets ``observation_space`` in ``__init__`` to what ``transform`` returns::

        class Direction(Preprocessor):
            def __init__(self, observation_space, scale=1.0):
                super().__init__(observation_space)
                self.observation_space = Box(-scale, scale, (2,), np.float32)
    """

    def __init__(self, observation_space: Space[Any], **kwargs: Any) -> None:
        """Initialise; ``observation_space`` is the env's, inside of its wrappers."""
        if kwargs:
            raise TypeError(f"{type(self).__name__} has no argument {next(iter(kwargs))}")
        self.observation_space = observation_space
        """The space of what ``transform`` returns."""

    @abstractmethod
    def transform(self, observation: Any) -> Any:
        """Return what the network sees for ``observation``; called once for each observation of an env."""


class PreprocessedObservations(gym.ObservationWrapper[Any, Any, Any]):
    """Shows an env's observations as a preprocessor transforms them."""

    def __init__(self, env: gym.Env[Any, Any], preprocessor: Preprocessor) -> None:
        super().__init__(env)
        self._preprocessor = preprocessor
        self.observation_space = preprocessor.observation_space

    def observation(self, observation: Any) -> Any:
        return self._preprocessor.transform(observation)


Class = TypeVar("Class")

WRAPPERS: Final = "config.env_wrappers"
PREPROCESSOR: Final = "config.model.custom_preprocessor"
FROM_RLLIB: Final = (
    "derive it from rlexp.envs.Preprocessor: RLlib's _init_shape(obs_space, options) is its"
    " __init__(observation_space), which sets self.observation_space; transform(observation) stays"
)
"""How to convert a class for RLlib."""


def wrapped(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` in the wrappers of ``config``, the first innermost; raises UsageError if one cannot be made."""
    for wrapper in config.wrappers:
        kind = classes.find_class(WRAPPERS, wrapper.name, gym.Wrapper, "gymnasium.Wrapper")
        name = f"{config.env}: wrapper {wrapper.name}"
        env = CheckedEnv(_made(name, kind, env, wrapper), name, "wrapper")
    return env


def preprocessed(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` with observations of the preprocessor of ``config``; without one, unchanged."""
    given = config.preprocessor
    if given is None:
        return env
    name = f"{config.env}: preprocessor {given.name}"
    made = _made(name, _preprocessor_class(given), env.observation_space, given)
    if not isinstance(getattr(made, "observation_space", None), gym.Space):
        message = f"env {name} has no observation_space: it must be a gymnasium.Space"
        raise EnvError(message, "set self.observation_space in __init__ to what transform returns")
    return CheckedEnv(PreprocessedObservations(env, made), name, "preprocessor")


def _made(name: str, kind: type[Class], around: Any, given: UserClass) -> Class:
    try:
        return kind(around, **deepcopy(dict(given.kwargs)))  # type: ignore[call-arg]
    except BaseException as error:  # the user's code may raise anything
        located = env_error(name, error)
        hint = "its arguments are the env, or the observation space, and those that the file gives"
        raise UsageError(located.message, hint if isinstance(error, TypeError) else "correct the class") from error


def _preprocessor_class(given: UserClass) -> type[Preprocessor]:
    try:
        found = classes.find_object(PREPROCESSOR, given.name)
    except UsageError as error:
        raise UsageError(error.message, FROM_RLLIB if _needs_rllib(error.__cause__) else error.hint) from error
    if hasattr(found, "_init_shape"):
        message = f"{PREPROCESSOR} {given.name} is a preprocessor of RLlib, which rlexp does not have"
        raise UsageError(message, FROM_RLLIB)
    base: type[Any] = Preprocessor
    kind: type[Preprocessor] = classes.derived(PREPROCESSOR, given.name, found, base, "rlexp.envs.Preprocessor")
    return kind


def _needs_rllib(error: BaseException | None) -> bool:
    """Return whether a module could not be imported because it imports RLlib."""
    if not isinstance(error, ImportError):
        return False
    lines = traceback.extract_tb(error.__traceback__)
    return any("ray.rllib" in (frame.line or "") for frame in lines) or "rllib" in str(error)
