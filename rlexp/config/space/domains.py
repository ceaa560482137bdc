"""Domains: the values that a searched key can have, how one is sampled, and how it is perturbed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

TAILS = 4.0
"""Standard deviations from its mean beyond which ``randn`` draws anew: 1 in 16,000, and variants can be checked."""
SIGNIFICANT = 4
"""Digits of a drawn number that is no multiple of anything."""
_DIGITS = 12
"""Decimals to which multiples of a quantum are rounded: 3 x 0.1 is 0.3."""

Number = int | float


class Domain(Protocol):
    """What a searched key may be; drawn from by ``random``, moved about in by ``pbt``."""

    def data(self) -> dict[str, Any]:
        """Return the domain as a file has it: ``{"uniform": [0, 1]}``."""

    def holds(self, value: Any) -> bool:
        """Return whether a value can be drawn."""

    def draw(self, rng: Random) -> Any:
        """Return one value."""

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return a value near ``value``: a number ``factor`` times it, one of a list its neighbour."""


@dataclass(frozen=True)
class Listed:
    """``grid_search`` and ``choice``: one of some values, each as likely as the others."""

    sampler: str
    values: Sequence[Any]

    def data(self) -> dict[str, Any]:
        return {self.sampler: list(self.values)}

    def holds(self, value: Any) -> bool:
        return value in self.values

    def draw(self, rng: Random) -> Any:
        return self.values[rng.randrange(len(self.values))]

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return the next value in the list for a factor above 1, else the one before; at an end, the end."""
        index = self.values.index(value) + (1 if factor > 1 else -1)
        return self.values[min(max(index, 0), len(self.values) - 1)]


@dataclass(frozen=True)
class Range:
    """A number between two others, both possible; uniform in itself or in its logarithm."""

    sampler: str
    arguments: tuple[Number, ...]
    """As the file has them."""
    low: Number
    high: Number
    is_log: bool = False
    step: Number | None = None
    """Values are multiples of it; whole numbers where it is one."""

    def data(self) -> dict[str, Any]:
        return {self.sampler: list(self.arguments)}

    def holds(self, value: Any) -> bool:
        is_between = _is_number(value) and self.low <= value <= self.high
        return is_between and (self.step is None or self.limited(value) == value)

    def draw(self, rng: Random) -> Number:
        if self.step is None:
            if self.is_log:
                return self.limited(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
            return self.limited(rng.uniform(self.low, self.high))
        if self.is_log:  # whole numbers: a half on each side, so that both ends are as likely as their logarithms are
            return self.limited(math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
        return self.limited(self.low + rng.randrange(round((self.high - self.low) / self.step) + 1) * self.step)

    def moved(self, value: Number, factor: float, rng: Random) -> Number:
        target = self.limited(value * factor)
        if target != value or self.step is None:
            return target
        up = (factor > 1) == (value >= 0)
        return self.limited(value + self.step if up else value - self.step)

    def limited(self, value: Number) -> Number:
        """Return the value of the range that is nearest to ``value``, with few enough digits to be read and retyped."""
        value = _short(value) if self.step is None else multiple(value, self.step)
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Normal:
    """``randn``: a normally distributed number, without the tails beyond TAILS standard deviations."""

    mean: Number
    deviation: Number

    def data(self) -> dict[str, Any]:
        return {"randn": [self.mean, self.deviation]}

    def holds(self, value: Any) -> bool:
        return _is_number(value) and self.ends[0] <= value <= self.ends[1]

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value that is drawn."""
        return self.mean - TAILS * self.deviation, self.mean + TAILS * self.deviation

    def draw(self, rng: Random) -> float:
        while True:  # once in all but 1 of 16,000 cases
            value = _short(rng.gauss(self.mean, self.deviation))
            if self.ends[0] <= value <= self.ends[1]:
                return value

    def moved(self, value: float, factor: float, rng: Random) -> float:
        return min(max(_short(value * factor), self.ends[0]), self.ends[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Number) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")


def multiple(value: Number, step: Number) -> Number:
    """Return the multiple of ``step`` that is nearest to ``value``; a whole number where ``step`` is one."""
    times = round(value / step)
    return times * step if isinstance(step, int) else round(times * step, _DIGITS)
