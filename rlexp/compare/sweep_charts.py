"""The places of a sweep's configurations in the charts of its report: parallel coordinates, and a slice for each key.

``sweep.html`` draws the charts as SVG.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rlexp.compare.charts import KeyScale, ScoreScale, Tick
from rlexp.compare.curve import Frame, place
from rlexp.compare.importance import Importance
from rlexp.compare.sweep import Configuration, RecordedOutcome, SweepResults
from rlexp.text import distinct_cuts, exact, score, value_words

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
