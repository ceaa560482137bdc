"""Scales of a sweep's charts: where the values of a key are on its axis, and scores on theirs, with their colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from rlexp.config.space.domains import Listed, Range
from rlexp.files import to_json
from rlexp.run_results.axis import tick_label, ticks
from rlexp.run_results.report.charts import limits
from rlexp.run_results.sweep_results import SweepResults
from rlexp.sample_batch import Array
from rlexp.text import distinct_cuts, score, value_words

_STEPS: Final = 7
"""Colours of scores that the style sheet has: ``s0`` (worst) to ``s6``."""
_OUTLIER: Final = 3.0
"""Values that are worse than the middle half of all by more widths of that half are drawn at the edge."""
_ROOM: Final = 0.04
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
        """Of the scores alone."""
        self.outside = int(((values < self.limits[0]) | (values > self.limits[1])).sum())
        """How many values are outside of the limits, and drawn at the edge."""
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
