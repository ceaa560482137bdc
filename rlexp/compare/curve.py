"""A trial's curve: a metric over env steps and time, read from its rows; the band of several, and what they reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlexp.compare.axis import CurveAxis
from rlexp.compare.run_listing import RESULT_FILE, number
from rlexp.files import parse_json, read_lines
from rlexp.metrics import interquartile_band
from rlexp.sample_batch import Array

_POINTS: Final = 200
_BAND_RESAMPLES: Final = 2_000


@dataclass(frozen=True)
class Curve:
    """One metric of one trial: row i was reported after ``steps[i]`` env steps and ``seconds[i]``; both rise."""

    steps: Array
    seconds: Array
    values: Array
    damaged_lines: int = 0
    """Lines that are not result rows; they are skipped."""
    metrics: frozenset[str] = frozenset()
    """The flat names of all numbers in the last row."""
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
    """Return ``metric`` (a flat name: ``info/learner/loss``) of the trial; empty if it has reported none yet.

    A resumed trial repeats the steps after its last checkpoint: rows that later rows repeat are
    dropped, so steps rise strictly.
    """
    rows = _CurveRows(metric)
    try:
        for line in read_lines(trial_directory / RESULT_FILE):
            if line.strip():
                rows.add(line)
    except FileNotFoundError:  # a trial that has not begun has none
        pass
    except OSError as error:
        return replace(_CurveRows(metric).curve(), problem=error.strerror)
    return rows.curve()


@dataclass
class _CurveRows:
    """Gathers the rows of a file, without those that later rows repeat."""

    metric: str
    points: list[tuple[float, float, float]] = field(default_factory=list)
    """Steps, seconds and the metric's value, NaN if the row has none."""
    damaged_lines: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)

    def add(self, line: bytes) -> None:
        row = _parsed(line)
        steps, seconds = number(row.get("timesteps_total")), number(row.get("time_total_s"))
        if steps is None or seconds is None:
            self.damaged_lines += 1
            return
        while self.points and self.points[-1][0] >= steps:
            self.points.pop()
        value = number(_item(row, self.metric))
        self.points.append((steps, seconds, math.nan if value is None else value))
        self.last = row

    def curve(self) -> Curve:
        table = np.array(self.points, dtype=float).reshape(-1, 3)
        table = table[~np.isnan(table[:, 2])]
        seconds = np.maximum.accumulate(table[:, 1])
        metrics = frozenset(name for name, value in _flat(self.last) if number(value) is not None)
        return Curve(table[:, 0], seconds, table[:, 2], self.damaged_lines, metrics)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _item(row: Mapping[str, Any], name: str) -> Any:
    """Return the value with a flat name; None if there is none."""
    if name in row:
        return row[name]
    head, _, rest = name.partition("/")
    inner = row.get(head)
    return _item(inner, rest) if isinstance(inner, dict) else None


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def band(curves: Sequence[Curve], axis: CurveAxis, rng: np.random.Generator) -> Band:
    """Return the curve of a group in the range that all its seeds have, with values between rows interpolated."""
    start = max(float(curve.along(axis)[0]) for curve in curves)
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    x = np.linspace(min(start, end), end, _POINTS)
    values = np.array([np.interp(x, curve.along(axis), curve.values) for curve in curves])
    return Band(x, *interquartile_band(values, rng, _BAND_RESAMPLES))


def reached(curve: Curve, goal: float) -> ReachedScore:
    """Return the first row with a value of ``goal`` or higher, over the whole trial."""
    there = np.flatnonzero(curve.values >= goal)
    if not there.size:
        return ReachedScore(math.inf, math.inf)
    return ReachedScore(float(curve.steps[there[0]]), float(curve.seconds[there[0]]))
