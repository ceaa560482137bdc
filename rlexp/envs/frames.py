"""Frames of envs that show images: scaled, made grey, stacked."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Env = gym.Env[Any, Any]
Frame = NDArray[np.uint8]

STACKED_FRAMES = 4
"""Frames that one observation shows, as in Mnih et al. 2015."""
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in grey (ITU-R BT.601), which the Arcade Learning Environment uses too."""


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether observations are images: bytes ``[H, W, C]``."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


class ScaledFrames(gym.ObservationWrapper[Any, Any, Any]):
    """Scales images ``[H, W, C]``, or grey ones ``[H, W]``, to another height and width; grey ones have one channel.

    Each pixel is the mean of the area that it covers, columns first: bit by bit what OpenCV's ``INTER_AREA``
    computes, which scales the frames of the Arcade Learning Environment's own vector env.
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
    """Shows the last STACKED_FRAMES frames ``[H, W, C]`` as ``[H, W, 4 C]``, the newest last; at first all the same."""

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
    """Scales one side of an array from ``pixels`` to ``dim``: each new pixel is the mean of what it covers.

    A new pixel covers few old ones, so a sum over those is quicker than a matrix product, which BLAS would
    also spread over all cores, against the workers beside this one.
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
