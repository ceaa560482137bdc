"""The two charts of a report as numbers: curves with their interval bands, and final scores seed by seed.

``charts.html`` draws them as SVG. Its units are those of the charts' width and height.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.number_format import score
from rlexp.results.axis import Unit, amount, tick_label, ticks, unit_of
from rlexp.results.comparison import ComparedGroup, Comparison
from rlexp.sample_batch import Array

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


@dataclass(frozen=True)
class Frame:
    """The rectangle of a chart between its axes, and the places of values in it."""

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
        return ((_place(self.x(value)), tick_label(value)) for value in ticks(*self.x_limits, _X_TICKS))

    def y_ticks(self) -> Iterator[tuple[str, str]]:
        """Yield place and label of each tick of the vertical axis."""
        return ((_place(self.y(value)), tick_label(value)) for value in ticks(*self.y_limits, _Y_TICKS))


@dataclass(frozen=True)
class Mark:
    """A place in a chart, and its text or tooltip."""

    x: str
    y: str
    text: str
    colour: str


@dataclass(frozen=True)
class CurvesChart:
    """The IQM over seeds of each group along the axis, with its pointwise interval."""

    frame: Frame
    unit: str
    window: tuple[str, str] | None
    """Left end and width of the part where final scores are taken."""
    curves: list[Curve]
    ends: list[Mark]
    """Each group's letter and last value at the end of its curve."""


@dataclass(frozen=True)
class Curve:
    """The curve of a group: the points of its line and of its band."""

    name: str
    line: str
    band: str
    colour: str
    dashes: str | None
    points: list[Mark]
    """Places with a tooltip."""


@dataclass(frozen=True)
class ScoresChart:
    """Final scores, a row per group."""

    frame: Frame
    rows: list[ScoreRow]


@dataclass(frozen=True)
class ScoreRow:
    """A dot for each seed's final score, and the IQM with its interval."""

    name: Mark
    seeds: list[Mark]
    interval: list[str] | None
    iqm: Mark
    middle: float


def colour_class(index: int) -> str:
    """Return the class of the style sheet that gives group number ``index`` its colour."""
    return f"c{index % _COLOURS}"


def curves_chart(comparison: Comparison) -> CurvesChart:
    """Return the chart of the groups' curves."""
    bands = [group.band for group in comparison.groups]
    unit = unit_of(comparison.axis, max(float(band.x[-1]) for band in bands))
    y_limits = _limits((values for band in bands for values in (band.low, band.high)), _ROOM)
    frame = Frame(_CURVES_HEIGHT, _limits(band.x / unit.size for band in bands), y_limits)
    window = None
    if comparison.window is not None:
        ends = np.array([comparison.window.start, comparison.window.end]) / unit.size
        left, right = frame.x(np.clip(ends, *frame.x_limits)).tolist()
        window = f"{left:.1f}", f"{right - left:.1f}"
    curves = [_curve(frame, index, comparison, unit) for index in range(len(comparison.groups))]
    return CurvesChart(frame, unit.label, window, curves, list(_ends(frame, comparison, unit)))


def _curve(frame: Frame, index: int, comparison: Comparison, unit: Unit) -> Curve:
    group = comparison.groups[index]
    band, x = group.band, group.band.x / unit.size
    return Curve(
        name=group.name,
        line=frame.points(x, band.middle),
        band=frame.points(np.concatenate([x, x[::-1]]), np.concatenate([band.high, band.low[::-1]])),
        colour=colour_class(index),
        dashes=_DASHES[index // _COLOURS % len(_DASHES)],
        points=list(_points(frame, index, comparison, unit)),
    )


def _points(frame: Frame, index: int, comparison: Comparison, unit: Unit) -> Iterator[Mark]:
    """Yield places along a curve, with its values there."""
    group, band = comparison.groups[index], comparison.groups[index].band
    for place in np.linspace(0, len(band.x) - 1, _POINTS).round().astype(int):
        x, middle, low, high = (float(values[place]) for values in (band.x, band.middle, band.low, band.high))
        interval = f" [{score(low)}, {score(high)}]" if len(group.trials) > 1 else ""
        at = f"{amount(x / unit.size, comparison.axis)} {unit.label}"
        text = f"{group.mark} {group.name}\n{at}: {score(middle)}{interval}"
        yield Mark(_place(frame.x(x / unit.size)), _place(frame.y(middle)), text, colour_class(index))


def _ends(frame: Frame, comparison: Comparison, unit: Unit) -> Iterator[Mark]:
    """Yield the marks at the ends of the curves from top to bottom; those that would overlap are moved apart."""
    tops = [float(frame.y(group.band.middle[-1])) for group in comparison.groups]
    lowest = float("-inf")
    for index in sorted(range(len(tops)), key=lambda index: tops[index]):
        group, lowest = comparison.groups[index], max(tops[index], lowest + _LINE_HEIGHT)
        left = float(frame.x(group.band.x[-1] / unit.size))
        text = f"{group.mark} {score(group.band.middle[-1])}"
        yield Mark(f"{left + 6:.1f}", f"{lowest:.1f}", text, colour_class(index))


def scores_chart(comparison: Comparison) -> ScoresChart:
    """Return the chart of the seeds' final scores."""
    groups = comparison.groups
    scores = [np.array([trial.score for trial in group.trials]) for group in groups]
    # As wide as the curves are high: dots that are apart there by noise alone are not apart here.
    trained = [values for group in groups for values in (group.band.low, group.band.high)]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    frame = Frame(height, _limits([*scores, *trained], _ROOM), (len(groups) - 0.5, -0.5))
    return ScoresChart(frame, [_score_row(frame, index, group) for index, group in enumerate(groups)])


def _score_row(frame: Frame, index: int, group: ComparedGroup) -> ScoreRow:
    middle, colour = float(frame.y(index)), colour_class(index)

    def mark(value: float, text: str) -> Mark:
        return Mark(_place(frame.x(value)), _place(middle), text, colour)

    interval = group.iqm.interval
    return ScoreRow(
        name=Mark("40", _place(middle), group.mark, colour),
        seeds=[
            mark(trial.score, f"{group.name}, seed {trial.folder.seed}: {score(trial.score)}") for trial in group.trials
        ],
        interval=None if interval is None else [_place(frame.x(end)) for end in interval],
        iqm=mark(group.iqm.value, f"{group.name}: IQM {score(group.iqm.value)}"),
        middle=middle,
    )


def _limits(arrays: Iterable[Array], room: float = 0.0) -> tuple[float, float]:
    """Return the lowest and highest value, with ``room`` (a share of their distance) around; apart if equal."""
    values = np.concatenate([np.ravel(each) for each in arrays])
    low, high = float(values.min()), float(values.max())
    slack = high * room - low * room if high > low else max(0.5, abs(high) * _ROOM_OF_ONE_VALUE)
    return low - slack, high + slack


def _placed(values: Array | float, limits: tuple[float, float], ends: tuple[float, float]) -> Array:
    low, high = limits
    share = (np.asarray(values) / 2 - low / 2) / (high / 2 - low / 2)  # halves: high - low may exceed every float
    return np.asarray(ends[0] + share * (ends[1] - ends[0]))


def _place(at: Array | float) -> str:
    return f"{float(at):.1f}"
