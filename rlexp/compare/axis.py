"""The axis along which runs are compared, env steps or time, its units, and its ticks in a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

_UNITS: Final = (("hours", 3600.0), ("minutes", 60.0))

_UNITS_SHOWN: Final = 3.0
"""A unit of time is used if the plot spans at least this many of it."""

_SUFFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class CurveAxis(StrEnum):
    """The quantity by which runs are aligned."""

    STEPS = "steps"
    TIME = "time"

    @property
    def label(self) -> str:
        """Its name with its unit."""
        return "env steps" if self is CurveAxis.STEPS else "seconds"


@dataclass(frozen=True)
class Unit:
    """The unit of an axis, and its size in env steps or seconds."""

    label: str
    size: float


def unit_of(axis: CurveAxis, end: float) -> Unit:
    """Return the unit in which an axis up to ``end`` (env steps or seconds) reads best."""
    if axis is CurveAxis.TIME:
        for label, size in _UNITS:
            if end >= _UNITS_SHOWN * size:
                return Unit(label, size)
    return Unit(axis.label, 1.0)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` round numbers from ``low`` to ``high``, evenly spaced; ``low`` if both are equal."""
    if not high > low:
        return [low]
    rough = (high - low) / (2 * most)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = (factor * power * scale for scale in (1.0, 10.0) for factor in _ROUND)
    return next(
        found for found in (_multiples(step, low, high) for step in steps if step >= rough) if len(found) <= most
    )


def tick_label(value: float) -> str:
    """Return a short form: ``250``, ``1.5k``, ``20M``, ``0.02``."""
    size, suffix = next(((size, suffix) for size, suffix in _SUFFIXES if abs(value) >= size), (1.0, ""))
    return f"{value / size:.4g}{suffix}"


def amount(value: float, axis: CurveAxis) -> str:
    """Return a number of an axis for a sentence: env steps are whole, ``12,345``, times are not, ``17.2``."""
    return f"{value:,.0f}" if axis is CurveAxis.STEPS or abs(value) >= 100 else f"{value:.3g}"


def _multiples(step: float, low: float, high: float) -> list[float]:
    slack = step * 1e-9
    first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
    return [number * step for number in range(first, last + 1)]
