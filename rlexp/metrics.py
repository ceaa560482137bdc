"""Numbers about training: scores of trials with intervals, shares of time, statistics of recent episodes.

Scores are compared over few seeds by interquartile means and bootstrap intervals, as in rliable (Agarwal, Schwarzer,
Castro, Courville, Bellemare, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021).
They come in strata, one array ``[seeds]`` per environment: a bootstrap draws seeds within each.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.errors import TrialError
from rlexp.sample_batch import Array

FINAL_SHARE: Final = 0.1
"""The last part of a budget; the mean over it is a trial's final score."""
RESAMPLES: Final = 10_000
_CONFIDENCE: Final = 0.95
_TAILS: Final = ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
_TRIMMED: Final = 0.25


@dataclass(frozen=True)
class Estimate:
    """A number and its percentile bootstrap interval; None for a single seed."""

    value: float
    interval: tuple[float, float] | None


def final_score(x: Array, values: Array, start: float, end: float) -> float:
    """Return the mean of ``values [N]`` with ``x [N]`` in (start, end]; if there are none, the nearest value.

    N is at least 1.
    """
    inside = (x > start) & (x <= end)
    if inside.any():
        return float(values[inside].mean())
    return float(values[np.abs(x - end).argmin()])


def bootstrap_interval(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of ``values [N]`` (Efron 1979)."""
    return _percentiles(_resampled(values, rng).mean(axis=1))


def interquartile_mean(scores: Array) -> Array:
    """Return the mean of the middle half along the last axis: ``[..., N]`` to ``[...]``.

    Of N scores the lowest and the highest ``N // 4`` are left out.
    """
    cut = int(scores.shape[-1] * _TRIMMED)
    middle: Array = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return middle


def interquartile_mean_of(strata: Sequence[Array], rng: np.random.Generator) -> Estimate:
    """Return the IQM over all scores of ``strata`` with its stratified bootstrap interval.

    The order of the scores does not matter, only the state of ``rng`` does.
    """
    point = float(interquartile_mean(np.concatenate(strata)))
    if max(map(len, strata)) < 2:
        return Estimate(point, None)
    resampled = np.concatenate([_resampled(np.sort(scores), rng) for scores in strata], axis=1)
    return Estimate(point, _percentiles(interquartile_mean(resampled)))


def improvement_probability(strata: Sequence[Array], over: Sequence[Array], rng: np.random.Generator) -> Estimate:
    """Return how likely a run here scores higher than one of ``over``, P(X > Y) with half of the ties.

    The mean over environments (stratum i of both is the same one) of the Mann-Whitney statistic,
    as the paper defines it; its bootstrap draws the seeds of both sides independently.
    """
    wins = [_wins(np.sort(mine), np.sort(theirs)) for mine, theirs in zip(strata, over, strict=True)]
    point = float(np.mean([table.mean() for table in wins]))
    if max(min(table.shape) for table in wins) < 2:
        return Estimate(point, None)
    resampled = np.mean([_resampled_wins(table, rng) for table in wins], axis=0)
    return Estimate(point, _percentiles(resampled))


def interquartile_band(values: Array, rng: np.random.Generator, resamples: int) -> tuple[Array, Array, Array]:
    """Return IQM, low and high ``[G]`` of curves ``[seeds, G]``; a draw takes whole curves, so bands are smooth.

    The interval is pointwise. For one seed, low and high are its curve.
    """
    middle = interquartile_mean(values.T)
    if len(values) < 2:
        return middle, middle, middle
    draws = rng.integers(len(values), size=(resamples, len(values)))
    ends = [_percentiles(interquartile_mean(point[draws])) for point in values.T]
    low, high = np.array(ends).T
    return middle, low, high


def _resampled(scores: Array, rng: np.random.Generator) -> Array:
    drawn: Array = scores[rng.integers(len(scores), size=(RESAMPLES, len(scores)))]
    return drawn


def _wins(mine: Array, theirs: Array) -> Array:
    """Return 1 if mine is higher, 0.5 if equal, else 0: ``[N, M]``."""
    table: Array = (np.sign(mine[:, None] - theirs[None, :]) + 1) / 2
    return table


def _resampled_wins(table: Array, rng: np.random.Generator) -> Array:
    """Return the share of wins ``[RESAMPLES]`` when the seeds of both sides are drawn anew."""
    rows, columns = table.shape
    drawn_rows = rng.multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES)
    drawn_columns = rng.multinomial(columns, np.full(columns, 1 / columns), size=RESAMPLES)
    shares: Array = ((drawn_rows @ table) * drawn_columns).sum(axis=1) / table.size
    return shares


def _percentiles(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, _TAILS)
    return float(low), float(high)


LONGEST_GAP_S: Final = 2.0
"""Most seconds that a RunningClock counts between two calls."""


@dataclass(frozen=True)
class Laps:
    """Seconds by part, and the seconds that passed."""

    elapsed_s: float
    parts_s: dict[str, float]


class Stopwatch:
    """Sums the time of named parts between two ``drain`` calls; for one thread."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._parts_s: dict[str, float] = defaultdict(float)

    @contextmanager
    def lap(self, part: str) -> Iterator[None]:
        """Count the time of the ``with`` body towards ``part``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._parts_s[part] += time.perf_counter() - started

    def drain(self) -> Laps:
        """Return the laps since the last call and reset them."""
        now = time.perf_counter()
        laps = Laps(now - self._since, dict(self._parts_s))
        self._since = now
        self._parts_s.clear()
        return laps


class RunningClock:
    """The seconds in which this process was running; called every few seconds, by one thread.

    After a stop (Ctrl-Z, SIGSTOP, a sleeping machine), a process must not regard all others as hung: they were stopped
    too, or have delivered results that it has not received yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialise; ``clock`` returns seconds that never decrease."""
        self._clock = clock
        self._looked_s = clock()
        self._counted_s = 0.0

    def __call__(self) -> float:
        """Return the seconds counted so far."""
        now = self._clock()
        self._counted_s += min(now - self._looked_s, LONGEST_GAP_S)
        self._looked_s = now
        return self._counted_s


MOST_METRICS: Final = 100
"""Most own metrics of a trial's episodes, each with three columns; and most own metrics of its iterations."""


class MetricWindows:
    """The last ``size`` values of each metric of episodes: returns and lengths, or the user's callbacks' metrics."""

    def __init__(self, size: int, names: Iterable[str] = ()) -> None:
        """Initialise; ``names`` are known beforehand and have statistics of NaN before they have values."""
        self._size = size
        self._windows: dict[str, deque[float]] = {name: deque(maxlen=size) for name in names}

    def extend(self, values: Mapping[str, Array]) -> None:
        """Add values ``[E]`` by name, oldest first; raises TrialError for more than MOST_METRICS names."""
        for name, added in values.items():
            self._window(name).extend(added.tolist())
        if len(self._windows) > MOST_METRICS:
            message = f"callbacks report more than {MOST_METRICS} own metrics: {', '.join(list(self._windows)[:5])} ..."
            raise TrialError(message, "report a few, by names that do not change from episode to episode")

    def state(self) -> dict[str, list[float]]:
        return {name: list(window) for name, window in self._windows.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Add the values that ``state`` returned."""
        for name, values in state.items():
            self._window(name).extend(values)

    def mean_if_full(self, name: str) -> float:
        """Return the mean of a metric; minus infinity if it has fewer than ``size`` values."""
        window = self._window(name)
        return float(np.mean(window)) if len(window) == self._size else -math.inf

    def summary(self) -> dict[str, float]:
        """Return mean, min and max of each metric, under RLlib's names."""
        return summarised({name: np.array(window) for name, window in self._windows.items()})

    def _window(self, name: str) -> deque[float]:
        return self._windows.setdefault(name, deque(maxlen=self._size))


def summarised(values: Mapping[str, Array]) -> dict[str, float]:
    """Return ``NAME_mean``, ``NAME_min`` and ``NAME_max`` of the values ``[E]`` of each name; NaN without values."""
    summary: dict[str, float] = {}
    for name, each in values.items():
        found = each if len(each) else np.array([math.nan])
        summary |= {
            f"{name}_mean": float(found.mean()),
            f"{name}_min": float(found.min()),
            f"{name}_max": float(found.max()),
        }
    return summary


class Mean:
    """The mean of the values added since the last ``drain``."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def drain(self) -> float:
        """Return the mean, 0 if nothing was added, and reset it."""
        mean = self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0.0, 0
        return mean
