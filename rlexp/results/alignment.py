"""Curves of different lengths and reporting times, made comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.metrics.statistics import FINAL_SHARE, interquartile_band
from rlexp.metrics.statistics import final_score as score_within
from rlexp.results.axis import Axis
from rlexp.results.curve import Curve
from rlexp.sample_batch import Array

_POINTS: Final = 200
_BAND_RESAMPLES: Final = 2_000


@dataclass(frozen=True)
class Window:
    """The last part of what all trials have: from ``start``, not counted, to ``end``, counted."""

    start: float
    end: float


@dataclass(frozen=True)
class Band:
    """A group's curve: the IQM over its seeds and its pointwise 95 % interval, ``[G]`` each."""

    x: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Reached:
    """When a trial's metric first was at a goal; infinite where it never was."""

    steps: float
    seconds: float


def final_window(curves: Sequence[Curve], axis: Axis) -> Window:
    """Return the last tenth of the budget that every curve has, counted from 0: the shortest one decides."""
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    return Window(end * (1 - FINAL_SHARE), end)


def final_score(curve: Curve, axis: Axis, window: Window) -> float:
    """Return the mean of the rows within ``window``, each counting once; of a curve with none there, the nearest."""
    return score_within(curve.along(axis), curve.values, window.start, window.end)


def band(curves: Sequence[Curve], axis: Axis, rng: np.random.Generator) -> Band:
    """Return the curve of a group where all of its seeds have one, values between rows interpolated."""
    start = max(float(curve.along(axis)[0]) for curve in curves)
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    x = np.linspace(min(start, end), end, _POINTS)
    values = np.array([np.interp(x, curve.along(axis), curve.values) for curve in curves])
    return Band(x, *interquartile_band(values, rng, _BAND_RESAMPLES))


def reached(curve: Curve, goal: float) -> Reached:
    """Return the first row whose value is ``goal`` or higher, over all that the trial ran."""
    there = np.flatnonzero(curve.values >= goal)
    if not there.size:
        return Reached(math.inf, math.inf)
    return Reached(float(curve.steps[there[0]]), float(curve.seconds[there[0]]))
