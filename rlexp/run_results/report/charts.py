"""The places of values in the two charts of a report: the groups' curves, and the seeds' final scores.

``charts.html`` draws the charts as SVG; its units are those of a frame's width and height.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.run_results.axis import amount, tick_label, ticks, unit_of
from rlexp.run_results.comparison import ComparedGroup, Comparison
from rlexp.sample_batch import Array
from rlexp.text import score

_COLOURS: Final = 8
"""How many the style sheet has: ``c0`` to ``c7``; later groups are dashed as well."""
_DASHES: Final = (None, "7 4", "2 3", "9 3 2 3")
_WIDTH: Final = 900
_CURVES_HEIGHT: Final = 400
_ROW_HEIGHT: Final = 34
_SCORES_MARGIN: Final = 56
_LINE_HEIGHT: Final = 14
_POINTS: Final = 25
"""Points with a tooltip along each curve."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 72, 10, 42
_X_TICKS, _Y_TICKS = 9, 6
_ROOM: Final = 0.04
"""The room above and below the values, as a share of their range."""
_ROOM_OF_ONE_VALUE: Final = 1e-6
"""The room around a single large value, as a share of it."""


def colour_class(index: int) -> str:
    """Return the class of the style sheet that gives group number ``index`` its colour."""
    return f"c{index % _COLOURS}"


def dashes(index: int) -> str | None:
    """Return the dashes of the curve of group number ``index``; None for a solid line."""
    return _DASHES[index // _COLOURS % len(_DASHES)]


def place(at: Array | float) -> str:
    """Return a place as text for an attribute."""
    return f"{float(at):.1f}"


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

    @property
    def bottom(self) -> int:
        """Where the horizontal axis is."""
        return self.height - _BOTTOM

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
        """Yield place and label of each tick of the horizontal axis."""
        return ((place(self.x(value)), tick_label(value)) for value in ticks(*self.x_limits, _X_TICKS))

    def y_ticks(self) -> Iterator[tuple[str, str]]:
        """Yield place and label of each tick of the vertical axis."""
        return ((place(self.y(value)), tick_label(value)) for value in ticks(*self.y_limits, _Y_TICKS))


class CurvesChart:
    """The IQM over seeds of each group along the axis, with its pointwise interval."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        bands = [group.band for group in comparison.groups]
        self.unit = unit_of(comparison.axis, max(float(band.x[-1]) for band in bands))
        x_limits = limits(band.x / self.unit.size for band in bands)
        y_limits = limits((values for band in bands for values in (band.low, band.high)), _ROOM)
        self.frame = Frame(_CURVES_HEIGHT, x_limits, y_limits)

    def window(self) -> tuple[float, float] | None:
        """Return left end and width of the part where final scores are taken."""
        window = self._comparison.window
        if window is None:
            return None
        ends = np.array([window.start, window.end]) / self.unit.size
        left, right = self.frame.x(np.clip(ends, *self.frame.x_limits)).tolist()
        return left, right - left

    def band(self, group: ComparedGroup) -> str:
        """Return the outline of a group's interval, as SVG's ``points``."""
        x, band = group.band.x / self.unit.size, group.band
        return self.frame.points(np.concatenate([x, x[::-1]]), np.concatenate([band.high, band.low[::-1]]))

    def line(self, group: ComparedGroup) -> str:
        """Return a group's curve, as SVG's ``points``."""
        return self.frame.points(group.band.x / self.unit.size, group.band.middle)

    def ends(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield each group's number, and place and text of the label at the end of its curve, from top to bottom.

        Labels that would overlap are moved apart.
        """
        groups = self._comparison.groups
        tops = [float(self.frame.y(group.band.middle[-1])) for group in groups]
        lowest = float("-inf")
        for index in sorted(range(len(tops)), key=lambda index: tops[index]):
            lowest = max(tops[index], lowest + _LINE_HEIGHT)
            left = float(self.frame.x(groups[index].band.x[-1] / self.unit.size)) + 6
            yield index, place(left), place(lowest), f"{groups[index].mark} {score(groups[index].band.middle[-1])}"

    def points(self, group: ComparedGroup) -> Iterator[tuple[str, str, str]]:
        """Yield place and tooltip of points along a group's curve."""
        band, size = group.band, self.unit.size
        for at in np.linspace(0, len(band.x) - 1, _POINTS).round().astype(int):
            x, middle, low, high = (float(values[at]) for values in (band.x, band.middle, band.low, band.high))
            interval = f" [{score(low)}, {score(high)}]" if len(group.trials) > 1 else ""
            where = f"{amount(x / size, self._comparison.axis)} {self.unit.label}"
            text = f"{group.mark} {group.name}\n{where}: {score(middle)}{interval}"
            yield place(self.frame.x(x / size)), place(self.frame.y(middle)), text


def scores_frame(comparison: Comparison) -> Frame:
    """Return the frame of the seeds' final scores, a row per group."""
    groups = comparison.groups
    scores = [np.array([trial.score for trial in group.trials]) for group in groups]
    # As wide as the curves are high: dots that are apart there by noise alone are not apart here.
    trained = [values for group in groups for values in (group.band.low, group.band.high)]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    return Frame(height, limits([*scores, *trained], _ROOM), (len(groups) - 0.5, -0.5))


def limits(arrays: Iterable[Array], room: float = 0.0) -> tuple[float, float]:
    """Return the lowest and highest value, with ``room`` (a share of their distance) around; apart if equal."""
    values = np.concatenate([np.ravel(each) for each in arrays])
    low, high = float(values.min()), float(values.max())
    slack = high * room - low * room if high > low else max(0.5, abs(high) * _ROOM_OF_ONE_VALUE)
    return low - slack, high + slack


def _placed(values: Array | float, limits: tuple[float, float], ends: tuple[float, float]) -> Array:
    low, high = limits
    share = (np.asarray(values) / 2 - low / 2) / (high / 2 - low / 2)  # halves: high - low may exceed every float
    return np.asarray(ends[0] + share * (ends[1] - ends[0]))
