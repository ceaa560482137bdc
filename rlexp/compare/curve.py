"""A trial's curve: a metric over an axis of env steps or time, read from its rows; the band of several, and a goal.

The axis has units. Ticks, limits and frames are what every plot needs, on a page or in a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from rlexp.compare.run_listing import RESULT_FILE, number
from rlexp.files import read_lines
from rlexp.metrics import interquartile_band
from rlexp.runs.rows import parsed_row
from rlexp.sample_batch import Array

_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_UNITS: Final = (("hours", 3600.0), ("minutes", 60.0))
_UNITS_SHOWN: Final = 3.0
"""A unit of time is used if the plot spans at least this many of it."""
_SUFFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_ROOM_OF_ONE_VALUE: Final = 1e-6
"""The room around a single large value, as a share of it."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BELOW = 900, 56, 72, 10, 42
_X_TICKS, _Y_TICKS = 9, 6
ROOM: Final = 0.04
"""The room above and below the values of a report's charts, as a share of their range."""


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


def place(at: Array | float) -> str:
    """Return a place as text for an attribute."""
    return f"{float(at):.1f}"


def limits(arrays: Iterable[Array], room: float = 0.0) -> tuple[float, float]:
    """Return the lowest and highest value, with ``room`` (a share of their distance) around; apart if equal."""
    values = np.concatenate([np.ravel(each) for each in arrays])
    low, high = float(values.min()), float(values.max())
    slack = high * room - low * room if high > low else max(0.5, abs(high) * _ROOM_OF_ONE_VALUE)
    return low - slack, high + slack


@dataclass(frozen=True)
class Frame:
    """A chart's rectangle between its axes, and the places of values in it."""

    height: int
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    width: int = _WIDTH
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP
    below: int = _BELOW
    """The room for labels under the horizontal axis."""

    @property
    def bottom(self) -> int:
        """Where the horizontal axis is."""
        return self.height - self.below

    def x(self, values: Array | float) -> Array:
        """Return the places of ``values`` from the left."""
        return _placed(values, self.x_limits, (self.left, self.right))

    def y(self, values: Array | float) -> Array:
        """Return the places of ``values`` from the top."""
        return _placed(values, self.y_limits, (self.bottom, self.top))

    def points(self, x: Array, y: Array) -> str:
        """Return a curve in the format of SVG's ``points``."""
        return " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(self.x(x), self.y(y), strict=True))

    def x_ticks(self) -> Iterator[tuple[str, str]]:
        """Return place and label of each tick of the horizontal axis."""
        return ((place(self.x(value)), tick_label(value)) for value in ticks(*self.x_limits, _X_TICKS))

    def y_ticks(self) -> Iterator[tuple[str, str]]:
        """Return place and label of each tick of the vertical axis."""
        return ((place(self.y(value)), tick_label(value)) for value in ticks(*self.y_limits, _Y_TICKS))


def _placed(values: Array | float, limits: tuple[float, float], ends: tuple[float, float]) -> Array:
    low, high = limits
    share = (np.asarray(values) / 2 - low / 2) / (high / 2 - low / 2)  # halves: high - low may exceed every float
    return np.asarray(ends[0] + share * (ends[1] - ends[0]))


_POINTS: Final = 200
_BAND_RESAMPLES: Final = 2_000
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Curve:
    """One metric of one trial: row i was reported after ``steps[i]`` env steps and ``seconds[i]``; both rise."""

    steps: Array
    seconds: Array
    values: Array
    damaged_lines: int = 0
    """Lines that are not result rows; they are skipped."""
    problem: str | None = None
    """Why its file cannot be read; then it has no rows."""

    def along(self, axis: CurveAxis) -> Array:
        """Return the curve's coordinates ``[N]`` along ``axis``."""
        return self.steps if axis is CurveAxis.STEPS else self.seconds


@dataclass(frozen=True)
class Band:
    """A group's curve: the IQM over its seeds and its pointwise 95 % interval, ``[G]`` each."""

    x: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class ReachedScore:
    """When a trial's metric first reached a goal; infinite if it never did."""

    steps: float
    seconds: float


def read_curve(trial_directory: Path, metric: str) -> Curve:
    """Return ``metric`` (a flat name: ``info/learner/loss``) of the trial; empty if it has reported none yet."""

    def point(row: Mapping[str, Any]) -> tuple[float, float, float] | None:
        seconds, value = number(row.get("time_total_s")), number(_item(row, metric))
        return None if seconds is None else (row["timesteps_total"], seconds, math.nan if value is None else value)

    try:
        points, damaged_lines = read_rows(trial_directory, point)
        problem = None
    except OSError as error:
        points, damaged_lines, problem = [], 0, error.strerror
    table = np.array(points, dtype=float).reshape(-1, 3)
    table = table[~np.isnan(table[:, 2])]
    return Curve(table[:, 0], np.maximum.accumulate(table[:, 1]), table[:, 2], damaged_lines, problem)


def read_rows(trial_directory: Path, kept: Callable[[Mapping[str, Any]], Kept | None]) -> tuple[list[Kept], int]:
    """Return what is ``kept`` of each row of ``result.json``, and how many lines are damaged; none if there is no file.

    A line is damaged if it is not a row, or nothing of it is kept. A resumed trial repeats the steps after its last
    checkpoint: rows that later rows repeat are dropped, so steps rise strictly. Raises OSError.
    """
    rows: list[tuple[float, Kept]] = []
    damaged_lines = 0
    try:
        for line in filter(bytes.strip, read_lines(trial_directory / RESULT_FILE)):
            row = parsed_row(line) or {}
            steps = number(row.get("timesteps_total"))
            found = None if steps is None else kept(row)
            if steps is None or found is None:
                damaged_lines += 1
                continue
            while rows and rows[-1][0] >= steps:
                rows.pop()
            rows.append((steps, found))
    except FileNotFoundError:  # a trial that has not begun has none
        pass
    return [found for _, found in rows], damaged_lines


def _item(row: Mapping[str, Any], name: str) -> Any:
    """Return the value with a flat name; None if there is none."""
    if name in row:
        return row[name]
    head, _, rest = name.partition("/")
    inner = row.get(head)
    return _item(inner, rest) if isinstance(inner, dict) else None


def band(curves: Sequence[Curve], axis: CurveAxis, rng: np.random.Generator) -> Band:
    """Return the curve of a group in the range that all its seeds have, with values between rows interpolated."""
    start = max(float(curve.along(axis)[0]) for curve in curves)
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    x = np.linspace(min(start, end), end, _POINTS)
    values = np.array([np.interp(x, curve.along(axis), curve.values) for curve in curves])
    return Band(x, *interquartile_band(values, rng, _BAND_RESAMPLES))


def reached(curve: Curve, goal: float, lower_is_better: bool = False) -> ReachedScore:
    """Return the first row with a value of ``goal`` or better, over the whole trial."""
    there = np.flatnonzero(curve.values <= goal if lower_is_better else curve.values >= goal)
    if not there.size:
        return ReachedScore(math.inf, math.inf)
    return ReachedScore(float(curve.steps[there[0]]), float(curve.seconds[there[0]]))
