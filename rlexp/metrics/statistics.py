"""Scores of trials and how sure they are over few seeds: interquartile means and bootstrap intervals as in rliable.

Agarwal, Schwarzer, Castro, Courville, Bellemare, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021.

Scores come in strata, one array ``[seeds]`` per environment: a bootstrap draws seeds within each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.sample_batch import Array

FINAL_SHARE: Final = 0.1
"""The last part of a budget: the mean over it is a trial's final score."""
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
    """Return the mean of ``values [N]`` where ``x [N]`` is in (start, end], each counting once; with none, the nearest.

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

    The interval is that of each point alone. Of one seed, low and high are its curve.
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
    """Return 1 where mine is higher, 0.5 where equal, else 0: ``[N, M]``."""
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
