"""The places of values in a report's charts: curves of groups, final scores of seeds, keys and scores of a sweep.

``charts.html`` draws the first two as SVG, ``sweep.html`` what ``sweep_charts`` makes with the scales; units are a
frame's width and height.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from rlexp.compare.comparison import ComparedGroup, Comparison
from rlexp.compare.curve import CurveAxis, Frame, amount, limits, place, tick_label, ticks, unit_of
from rlexp.compare.sweep import SweepResults
from rlexp.config.domains import Listed, Range
from rlexp.files import to_json
from rlexp.sample_batch import Array
from rlexp.text import distinct_cuts, score, value_words

_COLOURS: Final = 8
"""Number of colours in the style sheet: ``c0`` to ``c7``; later groups are dashed as well."""
_DASHES: Final = (None, "7 4", "2 3", "9 3 2 3")
_CURVES_HEIGHT: Final = 400
_ROW_HEIGHT: Final = 34
_SCORES_MARGIN: Final = 56
_LINE_HEIGHT: Final = 14
_POINTS: Final = 25
"""Points with a tooltip along each curve."""
_ROOM: Final = 0.04
"""The room above and below the values, as a share of their range."""


def colour_class(index: int) -> str:
    """Return the class of the style sheet that gives group number ``index`` its colour."""
    return f"c{index % _COLOURS}"


def dashes(index: int) -> str | None:
    """Return the dashes of the curve of group number ``index``; None for a solid line."""
    return _DASHES[index // _COLOURS % len(_DASHES)]


class CurvesChart:
    """The IQM over seeds of each group along env steps or time, with its pointwise interval."""

    def __init__(self, comparison: Comparison, axis: CurveAxis) -> None:
        self._comparison = comparison
        self._axis = axis
        self._bands = {group: group.band_along(axis) for group in comparison.groups}
        bands = [*self._bands.values()]
        self.unit = unit_of(axis, max(float(band.x[-1]) for band in bands))
        x_limits = limits(band.x / self.unit.size for band in bands)
        y_limits = limits((values for band in bands for values in (band.low, band.high)), _ROOM)
        self.frame = Frame(_CURVES_HEIGHT, x_limits, y_limits)

    def window(self) -> tuple[float, float] | None:
        """Return left end and width of the part where final scores are taken."""
        window = self._comparison.window
        if window is None or self._axis is not self._comparison.axis:
            return None
        ends = np.array([window.start, window.end]) / self.unit.size
        left, right = self.frame.x(np.clip(ends, *self.frame.x_limits)).tolist()
        return left, right - left

    def band(self, group: ComparedGroup) -> str:
        """Return the outline of a group's interval, as SVG's ``points``."""
        band = self._bands[group]
        x = band.x / self.unit.size
        return self.frame.points(np.concatenate([x, x[::-1]]), np.concatenate([band.high, band.low[::-1]]))

    def line(self, group: ComparedGroup) -> str:
        """Return a group's curve, as SVG's ``points``."""
        return self.frame.points(self._bands[group].x / self.unit.size, self._bands[group].middle)

    def ends(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield each group's number, and place and text of the label at the end of its curve, from top to bottom.

        Labels that would overlap are moved apart.
        """
        groups = self._comparison.groups
        last = [(float(self._bands[group].x[-1]), float(self._bands[group].middle[-1])) for group in groups]
        tops = [float(self.frame.y(value)) for _, value in last]
        lowest = float("-inf")
        for index in sorted(range(len(tops)), key=lambda index: tops[index]):
            lowest = max(tops[index], lowest + _LINE_HEIGHT)
            left = float(self.frame.x(last[index][0] / self.unit.size)) + 6
            yield index, place(left), place(lowest), f"{groups[index].mark} {score(last[index][1])}"

    def points(self, group: ComparedGroup) -> Iterator[tuple[str, str, str]]:
        """Yield place and tooltip of points along a group's curve."""
        band, size = self._bands[group], self.unit.size
        for at in np.linspace(0, len(band.x) - 1, _POINTS).round().astype(int):
            x, middle, low, high = (float(values[at]) for values in (band.x, band.middle, band.low, band.high))
            interval = f" [{score(low)}, {score(high)}]" if len(group.trials) > 1 else ""
            where = f"{amount(x / size, self._axis)} {self.unit.label}"
            text = f"{group.mark} {group.name}\n{where}: {score(middle)}{interval}"
            yield place(self.frame.x(x / size)), place(self.frame.y(middle)), text


def axes_of(comparison: Comparison) -> tuple[CurveAxis, ...]:
    """Return the axes of its pictures: the one of the comparison, and the other one."""
    return (comparison.axis, *(axis for axis in CurveAxis if axis is not comparison.axis))


def scores_frame(comparison: Comparison) -> Frame:
    """Return the frame of the seeds' final scores, a row per group."""
    groups = comparison.groups
    scores = [np.array([trial.score for trial in group.trials]) for group in groups]
    # As wide as the curves are high, so that dots that only noise separates are close here too.
    trained = [values for group in groups for values in (group.band.low, group.band.high)]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    return Frame(height, limits([*scores, *trained], _ROOM), (len(groups) - 0.5, -0.5))


_STEPS: Final = 7
"""Colours of scores that the style sheet has: ``s0`` (worst) to ``s6``."""
_OUTLIER: Final = 3.0
"""Values that are worse than the middle half of all by more widths of that half are drawn at the edge."""
_TICKS: Final = 6
_MOST_CATEGORIES: Final = 12
"""More categories than these do not all have a label."""
_SPREAD: Final = 0.5
"""Part of a category's width over which its configurations are spread."""
_GOLDEN: Final = 0.618034


@dataclass(frozen=True)
class Tick:
    """A labelled place on the scale of a key."""

    share: float
    label: str
    full: str
    """The label uncut."""


class KeyScale:
    """The scale of a searched key: shares (0..1) of its axis for values; the values of a list are evenly spaced."""

    def __init__(self, domain: Listed | Range) -> None:
        self._domain = domain
        self._categories = [to_json(value) for value in domain.values] if isinstance(domain, Listed) else []

    def share(self, value: Any) -> float:
        """Return the place of a value that occurs."""
        domain = self._domain
        if isinstance(domain, Listed):
            return (self._categories.index(to_json(value)) + 0.5) / len(self._categories)
        return self._share_of_number(domain, value)

    def ticks(self, letters: int) -> list[Tick]:
        """Return the ticks, their labels cut to so many letters."""
        domain = self._domain
        if isinstance(domain, Range):
            numbers = [value for value in _number_ticks(domain) if 0 <= self._share_of_number(domain, value) <= 1]
            return [Tick(self._share_of_number(domain, value), tick_label(value), "") for value in numbers]
        words = [value_words(value) for value in domain.values]
        every = math.ceil(len(words) / _MOST_CATEGORIES)
        found = [
            Tick((index + 0.5) / len(words), cut, full)
            for index, (cut, full) in enumerate(zip(distinct_cuts(words, letters), words, strict=True))
        ]
        return found[::every]

    def spread(self, index: int) -> float:
        """Return how far (in shares) to move configuration number ``index`` aside, so that each in a category is seen.

        Number 0, the best, is in the middle.
        """
        if not self._categories:
            return 0.0
        return ((index * _GOLDEN + 0.5) % 1 - 0.5) * _SPREAD / len(self._categories)

    @staticmethod
    def _share_of_number(domain: Range, value: float) -> float:
        low, high = float(domain.low), float(domain.high)
        if low == high:
            return 0.5
        if domain.is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


class ScoreScale:
    """The scale of scores and last values of a sweep, and the colours of scores."""

    def __init__(self, results: SweepResults) -> None:
        values = np.array([each.value for each in results.configurations if each.value is not None] or [0.0])
        scores = np.array([each.score for each in results.configurations if each.score is not None] or [0.0])
        self.limits = limits([_without_worst(values, results.lower_is_better)], _ROOM)
        self.score_limits = limits([_without_worst(scores, results.lower_is_better)], _ROOM)
        """The limits of the scores alone."""
        self.outside = int(((values < self.limits[0]) | (values > self.limits[1])).sum())
        """Number of values outside of the limits, which are drawn at the edge."""
        self._colours = limits([_without_worst(scores, results.lower_is_better)], 0.0)
        self._lower_is_better = results.lower_is_better

    def colour_class(self, value: float) -> str:
        """Return the class of the style sheet for a score."""
        low, high = self._colours
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        share = 1 - share if self._lower_is_better else share
        return f"s{min(int(share * _STEPS), _STEPS - 1)}"

    def legend(self) -> list[tuple[str, str]]:
        """Return the classes from the lowest score to the highest, each with its range in words."""
        edges = np.linspace(*self._colours, _STEPS + 1).tolist()
        return [
            (self.colour_class((low + high) / 2), f"{score(low)} to {score(high)}") for low, high in pairwise(edges)
        ]

    def ends(self) -> tuple[str, str]:
        """Return the lowest and the highest score of the legend."""
        low, high = self._colours
        return score(low), score(high)


def _without_worst(values: Array, lower_is_better: bool) -> Array:
    """Return the values without those that are far worse than the middle half."""
    low, high = np.quantile(values, (0.25, 0.75))
    far = _OUTLIER * (high - low)
    if far == 0:
        return values
    kept: Array = values <= high + far if lower_is_better else values >= low - far
    return np.asarray(values[kept])


def _number_ticks(domain: Range) -> list[float]:
    """Return round numbers; on a logarithmic scale powers of ten, if there are two or more."""
    low, high = float(domain.low), float(domain.high)
    if not domain.is_log:
        found = ticks(low, high, _TICKS)
        whole = isinstance(domain.low, int) and isinstance(domain.high, int)
        return [value for value in found if value.is_integer()] if whole else found
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**power for power in range(first, last + 1)]
    return powers[:: math.ceil(len(powers) / _TICKS)] if len(powers) > 1 else [low, *powers, high]
