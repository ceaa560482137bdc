"""What is kept of a tag's points: figures and a curve in bounded memory, one point, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from rlexp.sample_batch import Array

SERIES: Final = np.dtype([("step", "<i8"), ("wall_time", "<f8"), ("value", "<f8")])

CELLS: Final = 512
"""Most stretches in a curve. At least half of them are in use, so its last tenth is exact to 0.4 % of the points."""

FEWEST_FOR_SLOPE: Final = 10

_FOLDED_AT_ONCE: Final = 512
"""Points that wait to be folded together: with many tags a batch has few of each."""

# Moments of a stretch, a row each: the number of finite points, their mean step and value, and the sums of
# squared deviations of steps, and of deviations of steps times deviations of values.
_COUNT, _STEP, _VALUE, _STEP_STEP, _STEP_VALUE = range(5)


class LogGatherer(Protocol):
    """Takes the points of a tag, batch after batch."""

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT, in the order written."""


@dataclass(frozen=True)
class Figures:
    """A tag in a few numbers; the highest and the lowest value ignore NaN, and are None if all values are NaN."""

    points: int
    first_step: int
    last_step: int
    last: float
    max: float | None
    max_step: int | None
    """The first step with ``max``."""
    min: float | None
    min_step: int | None
    slope: float | None
    """The growth of the value per step, by least squares over the last tenth of the points, at least 10 of them."""
    first_wall_time: float
    last_wall_time: float
    """Seconds since 1970 of the points written first and last."""


class Summary:
    """Gathers the figures of a tag and its curve, in memory that does not depend on the number of points."""

    def __init__(self) -> None:
        self.curve = LogCurve()
        self._waiting: list[Array] = []
        self._waiting_points = 0
        self._first: Array | None = None
        self._last: Array | None = None
        self._extremes = _Extreme(1), _Extreme(-1)

    def take(self, points: Array) -> None:
        self._waiting.append(points.copy())  # a view would keep the whole batch in memory
        self._waiting_points += len(points)
        if self._waiting_points >= _FOLDED_AT_ONCE:
            self._fold()

    def figures(self) -> Figures:
        """Return the figures of all points taken; there must be one."""
        self._fold()
        assert self._first is not None
        assert self._last is not None
        highest, lowest = self._extremes
        return Figures(
            points=self.curve.points,
            first_step=int(self._first["step"]),
            last_step=int(self._last["step"]),
            last=float(self._last["value"]),
            max=highest.value,
            max_step=highest.step,
            min=lowest.value,
            min_step=lowest.step,
            slope=self.curve.slope()[0],
            first_wall_time=float(self._first["wall_time"]),
            last_wall_time=float(self._last["wall_time"]),
        )

    def _fold(self) -> None:
        if not self._waiting:
            return
        points = np.concatenate(self._waiting)
        self._waiting.clear()
        self._waiting_points = 0
        for extreme in self._extremes:
            extreme.take(points)
        self.curve.add(points["step"], points["value"])
        self._first = points[0].copy() if self._first is None else self._first
        self._last = points[-1].copy()


class _Extreme:
    """The highest or the lowest value, and the first step with it."""

    def __init__(self, sign: int) -> None:
        self.value: float | None = None
        self.step: int | None = None
        self._sign = sign

    def take(self, points: Array) -> None:
        points = points[~np.isnan(points["value"])]
        if not len(points):
            return
        furthest = points[int((self._sign * points["value"]).argmax())]
        value = float(furthest["value"])
        if self.value is None or self._sign * value > self._sign * self.value:
            self.value, self.step = value, int(furthest["step"])


class Series:
    """Gathers all points of a tag: 24 bytes each."""

    def __init__(self) -> None:
        self._pieces: list[Array] = []

    def take(self, points: Array) -> None:
        piece = np.empty(len(points), SERIES)
        for name in SERIES.names or ():
            piece[name] = points[name]
        self._pieces.append(piece)

    def points(self) -> Array:
        """Return all points, ``[N]`` of SERIES, in the order written."""
        self._pieces = [np.concatenate(self._pieces or [np.empty(0, SERIES)])]
        return self._pieces[0]


class AtStep:
    """Gathers the point with the last step up to ``step``; of points with the same step, the one written last."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._found: Array | None = None

    def take(self, points: Array) -> None:
        reached = points[points["step"] <= self._step]
        if not len(reached):
            return
        newest = reached[len(reached) - 1 - int(reached["step"][::-1].argmax())]
        if self._found is None or newest["step"] >= self._found["step"]:
            self._found = newest.copy()

    def points(self) -> Array:
        """Return the point, ``[1]`` of SERIES, or ``[0]`` if the tag begins later."""
        found = np.empty(0 if self._found is None else 1, SERIES)
        if self._found is not None:
            found[0] = tuple(self._found[name] for name in SERIES.names or ())
        return found


class LogCurve:
    """A curve of any length in bounded memory: moments of its finite points, in stretches of 1, 2, 4, 8 … points."""

    def __init__(self) -> None:
        self.points = 0
        self._width = 1
        """Points in each stretch but the last."""
        self._moments = np.empty((5, 0))

    def add(self, steps: Array, values: Array) -> None:
        """Append points: ``steps [N]``, int64, and ``values [N]``, float64."""
        while self.points + len(steps) > self._width * CELLS:
            self._width *= 2
            self._moments = _halved(self._moments)
        cells = (self.points + np.arange(len(steps))) // self._width
        firsts = np.flatnonzero(np.diff(cells, prepend=-1))
        new = _moments(steps.astype(float), values, firsts)
        if self.points % self._width:  # the last stretch is not full
            new[:, :1] = _joined(self._moments[:, -1:], new[:, :1])
            self._moments = self._moments[:, :-1]
        self._moments = np.concatenate([self._moments, new], axis=1)
        self.points += len(steps)

    def slope(self) -> tuple[float | None, int]:
        """Return the least-squares slope of value over step for the last tenth of the points, and how many these are.

        They are at least ``FEWEST_FOR_SLOPE`` points, or all there are. None if they have only one step.
        """
        cells = self._moments.shape[1]
        tail = max(-(-self.points // 10), FEWEST_FOR_SLOPE)
        taken = self.points - self._width * (cells - 1)  # in the last stretch
        first = cells - 1
        while first > 0 and taken < tail:
            first, taken = first - 1, taken + self._width
        count, step, value, step_step, step_value = self._moments[:, first:]
        total = count.sum()
        with np.errstate(all="ignore"):
            step_from, value_from = step - (count * step).sum() / total, value - (count * value).sum() / total
            spread = (step_step + count * step_from**2).sum()
            slope = (step_value + count * step_from * value_from).sum() / spread
        return (float(slope) if np.isfinite(slope) else None), int(total)

    def means(self, width: int) -> list[float]:
        """Return the mean values of at most ``width`` stretches of equal length; NaN for one without finite points."""
        cells = self._moments.shape[1]
        edges = np.arange(min(width, cells)) * cells // max(min(width, cells), 1)
        if not len(edges):
            return []
        counts = np.add.reduceat(self._moments[_COUNT], edges)
        with np.errstate(all="ignore"):
            sums = np.add.reduceat(self._moments[_COUNT] * self._moments[_VALUE], edges)
            means: list[float] = (sums / counts).tolist()
        return means


def _moments(steps: Array, values: Array, firsts: Array) -> Array:
    """Return the moments ``[5, S]`` of the stretches that begin at ``firsts [S]``."""
    known = np.isfinite(values)
    values = np.where(known, values, 0.0)
    weights = known.astype(float)
    counts = np.add.reduceat(weights, firsts)
    lengths = np.diff(firsts, append=len(steps))
    with np.errstate(all="ignore"):
        step = np.where(counts > 0, np.add.reduceat(steps * weights, firsts) / counts, 0.0)
        value = np.where(counts > 0, np.add.reduceat(values, firsts) / counts, 0.0)
        step_from = (steps - np.repeat(step, lengths)) * weights
        value_from = values - np.repeat(value, lengths)
        squares = np.add.reduceat(step_from**2, firsts)
        products = np.add.reduceat(step_from * value_from, firsts)
    return np.stack([counts, step, value, squares, products])


def _joined(first: Array, second: Array) -> Array:
    """Return the moments ``[5, S]`` of stretches that join one of each (Chan, Golub and LeVeque 1979)."""
    count = first[_COUNT] + second[_COUNT]
    with np.errstate(all="ignore"):
        share = np.where(count > 0, second[_COUNT] / count, 0.0)
        step_by, value_by = second[_STEP] - first[_STEP], second[_VALUE] - first[_VALUE]
        weight = first[_COUNT] * share
        return np.stack(
            [
                count,
                first[_STEP] + step_by * share,
                first[_VALUE] + value_by * share,
                first[_STEP_STEP] + second[_STEP_STEP] + step_by**2 * weight,
                first[_STEP_VALUE] + second[_STEP_VALUE] + step_by * value_by * weight,
            ]
        )


def _halved(moments: Array) -> Array:
    """Return the moments of stretches twice as long."""
    paired = moments.shape[1] // 2 * 2
    joined = _joined(moments[:, 0:paired:2], moments[:, 1:paired:2])
    return np.concatenate([joined, moments[:, paired:]], axis=1)
