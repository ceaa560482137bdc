"""The places of a sweep's configurations in the charts of its report: parallel coordinates, and a slice for each key.

First the scales of its keys and scores. ``sweep.html`` draws the charts as SVG; units are a frame's width and height.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from rlexp.compare.curve import ROOM, Frame, limits, place, tick_label, ticks
from rlexp.compare.importance import Importance
from rlexp.compare.sweep import Configuration, RecordedOutcome, SweepResults
from rlexp.config.domains import Listed, Range
from rlexp.files import to_json
from rlexp.sample_batch import Array
from rlexp.text import distinct_cuts, exact, score, value_words

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
        self.limits = limits([_without_worst(values, results.lower_is_better)], ROOM)
        self.score_limits = limits([_without_worst(scores, results.lower_is_better)], ROOM)
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


MOST_DRAWN: Final = 1000
_LONGEST_LABEL: Final = 100
_LETTER: Final = 7.2
"""Mean width of a letter."""
_AXIS_DISTANCE: Final = 104
_PARALLEL_WIDTH: Final = 920
"""With few keys, the axes are as far apart as this width allows; with many, they are ``_AXIS_DISTANCE`` apart."""
_DENSE: Final = 150
"""More lines than these are drawn paler."""
_PARALLEL_HEIGHT: Final = 420
_PARALLEL_LEFT, _PARALLEL_RIGHT, _PARALLEL_TOP = 76, 100, 44
_SLICE_WIDTH, _SLICE_HEIGHT = 300, 220
_SLICE_LEFT, _SLICE_RIGHT = 46, 12


@dataclass(frozen=True)
class Dot:
    """A configuration in a slice."""

    x: str
    y: str
    outcome: str
    """The class of the style sheet."""
    text: str


class SliceChart:
    """The values of all configurations over one key."""

    def __init__(self, key: str, results: SweepResults, scores: ScoreScale) -> None:
        self.key = key
        self.metric = results.metric
        self.scale = KeyScale(results.domains[key])
        self.frame = Frame(
            _SLICE_HEIGHT, (0.0, 1.0), scores.limits, _SLICE_WIDTH, _SLICE_LEFT, _SLICE_WIDTH - _SLICE_RIGHT
        )
        self._drawn = results.configurations[:MOST_DRAWN]
        self._best = results.best

    def ticks(self) -> Iterator[tuple[str, str, int, Tick]]:
        """Yield place, place and row of the label, and tick of the horizontal axis.

        Long labels are in two rows in turn.
        """
        room = (self.frame.right - self.frame.left) / max(len(self.scale.ticks(1)), 1) / _LETTER
        full = self.scale.ticks(_LONGEST_LABEL)
        rows = 1 if all(len(tick.label) < room for tick in full) else 2
        letters = int(room * rows) - (1 if rows == 1 else 4)
        for index, tick in enumerate(self.scale.ticks(max(letters, 1))):
            x = float(self.frame.x(tick.share))
            yield place(x), place(_inside(x, tick.label, _SLICE_WIDTH)), index % rows, tick

    def dots(self) -> Iterator[Dot]:
        """Yield the dots of configurations that have the key, the best last, above all others.

        Those that failed are at the lower edge. Unfinished ones without a value are left out.
        """
        for index, each in reversed(list(enumerate(self._drawn))):
            if self.key not in each.point or (each.value is None and each.outcome is not RecordedOutcome.FAILED):
                continue
            share = self.scale.share(each.point[self.key]) + self.scale.spread(index)
            value = self.frame.y_limits[0] if each.value is None else each.value
            words = f"{self.key} {value_words(each.point[self.key])}"
            outcome = "best" if each is self._best else outcome_class(each)
            yield Dot(place(self.frame.x(share)), _clipped_y(self.frame, value), outcome, f"{words}\n{said(each)}")


@dataclass(frozen=True)
class ChartLine:
    """A configuration in parallel coordinates."""

    points: str
    outcome: str
    """The class of the style sheet."""
    text: str


@dataclass(frozen=True)
class KeyAxis:
    """The vertical axis of a key in parallel coordinates."""

    key: str
    label: str
    """The key, cut."""
    x: float
    label_x: float
    row: int
    """Row of the label, 0 for the lower one."""
    scale: KeyScale
    ticks: tuple[Tick, ...]
    has_gaps: bool
    """Whether some configurations do not have the key: their lines pass below the axis."""


class ParallelChart:
    """A line for each configuration, through an axis for each key, to its score or to how it ended."""

    def __init__(self, results: SweepResults, keys: Sequence[str], scores: ScoreScale) -> None:
        sides = _PARALLEL_LEFT + _PARALLEL_RIGHT
        self._distance = max(_AXIS_DISTANCE, (_PARALLEL_WIDTH - sides) // max(len(keys), 1))
        width = sides + self._distance * len(keys)
        right = width - _PARALLEL_RIGHT
        self.frame = Frame(
            _PARALLEL_HEIGHT, (0.0, 1.0), scores.score_limits, width, _PARALLEL_LEFT, right, _PARALLEL_TOP
        )
        self.metric = results.metric
        self.drawn = results.configurations[:MOST_DRAWN]
        self.is_dense = len(self.drawn) > _DENSE
        room = int(self._distance / _LETTER) - 1
        self._rows = 1 if all(len(name) <= room for name in (*keys, self.metric)) else 2
        self.metric_row = len(keys) % self._rows
        """Row of its label, 0 for the lower one."""
        self.axes = list(self._axes(results, keys, room))
        self.score_x = float(right)
        self.endings = [outcome for outcome in RecordedOutcome if any(_ending(each) is outcome for each in self.drawn)]
        """Outcomes of configurations without a score, in the order of their places below the axis of scores."""
        self._scores = scores
        self._best = results.best

    @property
    def height(self) -> float:
        """The height with the rows below the axes."""
        return self.below(max(len(self.endings), 1))

    def y(self, share: float) -> str:
        """Return the place of a share of an axis from the top."""
        return place(self._y(share))

    def below(self, index: int) -> float:
        """Return the place of row number ``index`` below the axes from the top."""
        return self.frame.bottom + 14.0 + 14.0 * index

    def lines(self) -> Iterator[ChartLine]:
        """Yield the lines: those without a score first, then from the worst to the best, which is above all others."""
        from_worst = reversed(list(enumerate(self.drawn)))
        for index, each in sorted(from_worst, key=lambda pair: pair[1].score is not None):
            outcome = "best" if each is self._best else outcome_class(each)
            if each.score is not None and each is not self._best:
                outcome = f"{outcome} {self._scores.colour_class(each.score)}"
            yield ChartLine(" ".join(self._points(each, index)), outcome, said(each))

    def _points(self, configuration: Configuration, index: int) -> Iterator[str]:
        for axis in self.axes:
            y = self.below(0)
            if axis.key in configuration.point:
                y = self._y(axis.scale.share(configuration.point[axis.key]) + axis.scale.spread(index))
            yield f"{axis.x:.1f},{y:.1f}"
        ending = _ending(configuration)
        if configuration.score is not None:
            yield f"{self.score_x:.1f},{_clipped_y(self.frame, configuration.score)}"
        elif ending is not None:
            yield f"{self.score_x:.1f},{self.below(self.endings.index(ending)):.1f}"

    def _y(self, share: float) -> float:
        return self.frame.bottom - share * (self.frame.bottom - self.frame.top)

    def _axes(self, results: SweepResults, keys: Sequence[str], room: int) -> Iterator[KeyAxis]:
        """Yield the axes, their labels cut to ``room`` letters; long keys are in two rows in turn."""
        for index, (key, label) in enumerate(zip(keys, distinct_cuts(keys, room * self._rows), strict=True)):
            scale, x = KeyScale(results.domains[key]), float(_PARALLEL_LEFT + self._distance * index)
            has_gaps = any(key not in each.point for each in self.drawn)
            label_x = _inside(x, label, self.frame.width)
            yield KeyAxis(key, label, x, label_x, index % self._rows, scale, tuple(scale.ticks(room - 1)), has_gaps)


def _inside(x: float, label: str, width: int) -> float:
    """Return the place nearest to ``x`` of a label's middle at which the whole label is in the chart."""
    half = len(label) * _LETTER / 2
    return max(min(x, width - half), half)


def outcome_class(configuration: Configuration) -> str:
    """Return the class of the style sheet for how a configuration ended."""
    return configuration.outcome.replace(" ", "-")


def said(configuration: Configuration) -> str:
    """Return the text that a browser shows for a configuration."""
    end = configuration.ended_early
    at = "" if end is None else f" at {exact(end.at)} {end.unit}"
    words = f"configuration {configuration.number}, {configuration.outcome}{at}"
    return words if configuration.value is None else f"{words}: {score(configuration.value)}"


def _clipped_y(frame: Frame, value: float) -> str:
    low, high = frame.y_limits
    return place(frame.y(min(max(value, low), high)))


def _ending(configuration: Configuration) -> RecordedOutcome | None:
    return None if configuration.score is not None else configuration.outcome


class SweepSection:
    """What the page of a sweep shows of the sweep as a whole."""

    def __init__(self, results: SweepResults, importance: Importance | None) -> None:
        self.results = results
        self.importance = importance or Importance()
        self.importance_by_key = {each.key: each for each in self.importance.keys}
        self.keys = list(dict.fromkeys([*self.importance_by_key, *results.domains]))
        """The most important first; without importances, in the order of the file."""
        self.scores = ScoreScale(results)
        self.parallel = ParallelChart(results, self.keys, self.scores)
        self.slices = [SliceChart(key, results, self.scores) for key in self.keys]

    @property
    def left_out(self) -> int:
        """How many configurations are not drawn."""
        return len(self.results.configurations) - len(self.parallel.drawn)
