"""The distributions of actions in NumPy, for acting; ``torch_distributions`` has them for learning.

A network computes the *inputs* of a distribution, ``[B, K]``: logits, or means and logarithms of deviations. For them
``draw`` and ``most_likely`` return actions ``[B, *shape]``; ``log_prob`` returns the logarithms ``[B]`` (float32) of
probabilities or densities of actions; and ``num_inputs`` is K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from rlexp.models.network_config import masked
from rlexp.sample_batch import Array

LARGEST_LOG_STD = 20.0
"""Logarithms of deviations are clamped to plus and minus this; beyond it, they soon become NaN."""
SQUASHED_LOG_STD = (-20.0, 2.0)
"""Bounds of these logarithms if the numbers are squashed (Haarnoja et al. 2018's code)."""
LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class CategoricalActions:
    """One or several independent choices among a finite number: Discrete, MultiDiscrete, MultiBinary, Box of integers.

    The inputs are the logits of the first choice, then of the second, and so on.
    """

    sizes: tuple[int, ...]
    """Values of each choice."""
    first: tuple[int, ...]
    """The lowest value of each choice."""
    shape: tuple[int, ...]
    """Shape of an action."""
    dtype: str

    @property
    def num_inputs(self) -> int:
        return sum(self.sizes)

    def draw(self, inputs: Array, rng: np.random.Generator) -> Array:
        chosen = []
        for logits in self._split(inputs):
            probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
            cumulative = probabilities.cumsum(axis=1)
            drawn = rng.random((len(inputs), 1), np.float32) * cumulative[:, -1:]
            # after rounding, no sum may exceed a drawn number
            chosen.append(np.minimum((cumulative <= drawn).sum(axis=1), logits.shape[1] - 1))
        return self._actions(chosen)

    def most_likely(self, inputs: Array) -> Array:
        return self._actions([logits.argmax(axis=1) for logits in self._split(inputs)])

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        indices = actions.reshape(len(actions), len(self.sizes)).astype(np.int64) - np.array(self.first)
        total = np.zeros(len(inputs), np.float32)
        for logits, index in zip(self._split(inputs), indices.T, strict=True):
            shifted = logits - logits.max(axis=1, keepdims=True)
            taken = np.take_along_axis(shifted, index[:, None], axis=1)[:, 0]
            total += taken - np.log(np.exp(shifted).sum(axis=1))
        return total

    def uniform(self, num_actions: int, rng: np.random.Generator) -> Array:
        """Return so many actions, each choice uniformly random."""
        return self._actions([rng.integers(size, size=num_actions) for size in self.sizes])

    def uniform_among(self, allowed: Array, rng: np.random.Generator) -> Array:
        """Return an action for each row, uniformly random among the values ``allowed [B, K]`` of each choice."""
        return self.draw(masked(np.zeros(allowed.shape, np.float32), allowed), rng)

    def _split(self, inputs: Array) -> list[Array]:
        if len(self.sizes) == 1:
            return [inputs]
        return [inputs[:, start:stop] for start, stop in pairwise(accumulate(self.sizes, initial=0))]

    def _actions(self, chosen: list[Array]) -> Array:
        actions: Array = np.stack(chosen, axis=1) + np.array(self.first)
        shaped: Array = actions.reshape(len(actions), *self.shape).astype(self.dtype, copy=False)
        return shaped


@dataclass(frozen=True)
class PlainActions:
    """Numbers that are the inputs themselves, as the policies of ES and ARS choose them."""

    shape: tuple[int, ...]
    """Shape of an action."""
    dtype: str

    @property
    def num_numbers(self) -> int:
        """Numbers of an action."""
        return math.prod(self.shape)

    @property
    def num_inputs(self) -> int:
        return self.num_numbers

    def most_likely(self, inputs: Array) -> Array:
        return self.shaped(inputs)

    def shaped(self, numbers: Array) -> Array:
        """Return the actions ``[B, *shape]`` of ``numbers [B, D]``."""
        return numbers.reshape(len(numbers), *self.shape).astype(self.dtype, copy=False)


@dataclass(frozen=True)
class GaussianActions(PlainActions):
    """Numbers that are drawn independently, each from a normal distribution: Box of floating-point numbers.

    The inputs are the means, then the natural logarithms of the standard deviations.
    """

    @property
    def num_inputs(self) -> int:
        return 2 * self.num_numbers

    def draw(self, inputs: Array, rng: np.random.Generator) -> Array:
        mean, log_std = self._split(inputs)
        return self.shaped(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))

    def most_likely(self, inputs: Array) -> Array:
        return self.shaped(self._split(inputs)[0])

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        mean, log_std = self._split(inputs)
        distance = (actions.reshape(mean.shape) - mean) * np.exp(-log_std)
        log_prob: Array = (-0.5 * np.square(distance) - log_std - LOG_SQRT_2_PI).sum(axis=1, dtype=np.float32)
        return log_prob

    def _split(self, inputs: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(inputs, 2, axis=1)
        return mean, log_std.clip(-LARGEST_LOG_STD, LARGEST_LOG_STD)


@dataclass(frozen=True)
class SquashedActions(PlainActions):
    """Numbers between -1 and 1: the tanh of the inputs, as DDPG's policy chooses them."""

    def most_likely(self, inputs: Array) -> Array:
        return self.shaped(np.tanh(inputs))

    def uniform(self, num_actions: int, rng: np.random.Generator) -> Array:
        """Return so many actions, each number uniformly random."""
        return self.shaped(rng.uniform(-1.0, 1.0, (num_actions, self.num_numbers)).astype(np.float32))


@dataclass(frozen=True)
class SquashedGaussianActions(SquashedActions):
    """Numbers between -1 and 1: the tanh of normally distributed ones (Haarnoja et al. 2018, appendix C).

    The inputs are the means, then the natural logarithms of the standard deviations.
    """

    @property
    def num_inputs(self) -> int:
        return 2 * self.num_numbers

    def most_likely(self, inputs: Array) -> Array:
        return self.shaped(np.tanh(inputs[:, : self.num_numbers]))

    def draw(self, inputs: Array, rng: np.random.Generator) -> Array:
        mean, log_std = np.split(inputs, 2, axis=1)
        deviation = np.exp(log_std.clip(*SQUASHED_LOG_STD))
        return self.shaped(np.tanh(mean + deviation * rng.standard_normal(mean.shape, np.float32)))


Actions = CategoricalActions | GaussianActions


def actions_of(space: Space[Any]) -> Actions:
    """Return the distribution for a (checked) action space; raises ValueError for a space without one."""
    match space:
        case Discrete():
            return CategoricalActions((int(space.n),), (int(space.start),), (), str(space.dtype))
        case MultiDiscrete():
            first = tuple(space.start.reshape(-1).tolist())
            return CategoricalActions(tuple(space.nvec.reshape(-1).tolist()), first, space.shape, str(space.dtype))
        case MultiBinary():
            count = math.prod(space.shape)
            return CategoricalActions((2,) * count, (0,) * count, space.shape, str(space.dtype))
        case Box() if np.issubdtype(space.dtype, np.integer):
            low, high = space.low.reshape(-1).astype(int), space.high.reshape(-1).astype(int)
            sizes = tuple((high - low + 1).tolist())
            return CategoricalActions(sizes, tuple(low.tolist()), space.shape, str(space.dtype))
        case Box():
            return GaussianActions(space.shape, str(space.dtype))
    raise ValueError(f"no distribution for the action space {space}")
