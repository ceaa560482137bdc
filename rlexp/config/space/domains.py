"""Domains: the values that a searched key can have, and how a value is sampled and perturbed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

TAILS = 4.0
"""Standard deviations from its mean beyond which ``randn`` draws anew: 1 in 16,000, and variants can be checked."""
SIGNIFICANT = 4
"""Digits of a drawn number that is not a multiple of anything."""
_DIGITS = 12
"""Decimals to which multiples of a quantum are rounded: 3 x 0.1 is 0.3."""

Number = int | float


class Domain(Protocol):
    """The possible values of a searched key; ``random`` draws from them, ``pbt`` moves within them."""

    def data(self) -> dict[str, Any]:
        """Return the domain in the form of a file: ``{"uniform": [0, 1]}``."""

    def holds(self, value: Any) -> bool:
        """Return whether a value can be drawn."""

    def draw(self, rng: Random) -> Any:
        """Return one value."""

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return another value near ``value``, up or down at random; at an end, towards the inside.

        A number moves by ``factor - 1`` of the width of its range, at most by a half; in a logarithmic range it is
        multiplied or divided by ``factor`` if that is less. A value of a list is replaced by a neighbour.
        """


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
        """Return the next or previous other value in the list; the same value only if there is no other."""
        index = self.values.index(value)
        above = [each for each in self.values[index:] if each != value][:1]
        below = [each for each in self.values[:index] if each != value][-1:]
        either = above + below
        return either[rng.randrange(len(either))] if either else value


@dataclass(frozen=True)
class Range:
    """A number between two others, both possible; uniform in itself or in its logarithm."""

    sampler: str
    arguments: tuple[Number, ...]
    """The arguments in the file."""
    low: Number
    high: Number
    is_log: bool = False
    step: Number | None = None
    """Values are multiples of it; None: any; whole numbers if it is whole."""

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
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            distance = min(_share(factor) * (high - low), math.log(factor))
            return _moved(value, (low, high), distance, rng, math.log, lambda place: self.limited(math.exp(place)))
        distance = max(_share(factor) * (self.high - self.low), self.step or 0)
        return _moved(value, (self.low, self.high), distance, rng, float, self.limited)

    def limited(self, value: Number) -> Number:
        """Return the value of the range nearest to ``value``, with few enough digits to read and retype."""
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
        """The lowest and the highest value that can be drawn."""
        return self.mean - TAILS * self.deviation, self.mean + TAILS * self.deviation

    def draw(self, rng: Random) -> float:
        while True:  # runs once except in 1 of 16,000 cases
            value = _short(rng.gauss(self.mean, self.deviation))
            if self.ends[0] <= value <= self.ends[1]:
                return value

    def moved(self, value: float, factor: float, rng: Random) -> float:
        """Return another value; the range's width is taken as two standard deviations on each side."""
        low, high = self.ends
        distance = _share(factor) * 4 * self.deviation
        return _moved(value, (low, high), distance, rng, float, lambda place: min(max(_short(place), low), high))


def _share(factor: float) -> float:
    """Return the share of its range by which a number moves: at most a half, so that one side has room."""
    return min(factor - 1, 0.5)


def _moved(
    value: Number,
    ends: tuple[float, float],
    distance: float,
    rng: Random,
    place_of: Callable[[Number], float],
    value_at: Callable[[float], Number],
) -> Number:
    """Return another value, ``distance`` away in the units of ``ends``, or farther if rounding brings it back."""
    place, sign = place_of(value), 1 if rng.random() < 0.5 else -1
    while distance <= ends[1] - ends[0]:
        inside = [at for at in (place + sign * distance, place - sign * distance) if ends[0] <= at <= ends[1]]
        target = value_at(inside[0]) if inside else value
        if target != value:
            return target
        distance *= 2
    return value_at(max(ends, key=lambda end: abs(end - place)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Number) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")


def multiple(value: Number, step: Number) -> Number:
    """Return the multiple of ``step`` nearest to ``value``; a whole number if ``step`` is one."""
    times = round(value / step)
    return times * step if isinstance(step, int) else round(times * step, _DIGITS)
