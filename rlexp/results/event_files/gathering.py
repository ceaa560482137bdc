"""What is kept of a tag's points as they pass: figures in bounded memory, one point, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from rlexp.results.event_files.curve import Curve
from rlexp.sample_batch import Array

SERIES: Final = np.dtype([("step", "<i8"), ("wall_time", "<f8"), ("value", "<f8")])

_FOLDED_AT_ONCE: Final = 512
"""Points that wait to be folded together: with many tags a batch has few of each."""


class Gatherer(Protocol):
    """Takes the points of a tag, batch after batch."""

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT, in the order written."""


@dataclass(frozen=True)
class Figures:
    """A tag in a few numbers; NaN has no part in the highest and the lowest value, which are None where all are NaN."""

    points: int
    first_step: int
    last_step: int
    last: float
    max: float | None
    max_step: int | None
    """The step that reached ``max`` first."""
    min: float | None
    min_step: int | None
    slope: float | None
    """By how much the value grows a step, by least squares over the last tenth of the points, 10 of them at least."""
    first_wall_time: float
    last_wall_time: float
    """Seconds since 1970 of the points written first and last."""


class Summary:
    """Gathers the figures of a tag and its curve; the memory it takes does not depend on how many points there are."""

    def __init__(self) -> None:
        self.curve = Curve()
        self._waiting: list[Array] = []
        self._waiting_points = 0
        self._first: Array | None = None
        self._last: Array | None = None
        self._extremes = _Extreme(1), _Extreme(-1)

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT."""
        self._waiting.append(points.copy())  # a part of a batch would keep all of it
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
    """The highest value, or the lowest, and the step that reached it first."""

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
        """Take points ``[N]`` of POINT."""
        piece = np.empty(len(points), SERIES)
        for name in SERIES.names or ():
            piece[name] = points[name]
        self._pieces.append(piece)

    def points(self) -> Array:
        """Return all points, ``[N]`` of SERIES, in the order written."""
        self._pieces = [np.concatenate(self._pieces or [np.empty(0, SERIES)])]
        return self._pieces[0]


class AtStep:
    """Gathers the point with the last step up to ``step``; of points with one step, the one written last."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._found: Array | None = None

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT."""
        reached = points[points["step"] <= self._step]
        if not len(reached):
            return
        newest = reached[len(reached) - 1 - int(reached["step"][::-1].argmax())]
        if self._found is None or newest["step"] >= self._found["step"]:
            self._found = newest.copy()

    def points(self) -> Array:
        """Return the point, ``[1]`` of SERIES, or ``[0]`` where the tag begins later."""
        found = np.empty(0 if self._found is None else 1, SERIES)
        if self._found is not None:
            found[0] = tuple(self._found[name] for name in SERIES.names or ())
        return found
