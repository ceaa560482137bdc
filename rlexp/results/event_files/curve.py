"""A curve of any length in bounded memory: moments of equal stretches of it, which double when there are too many."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.sample_batch import Array

CELLS: Final = 512
"""Stretches kept; with half as many at least, the last tenth is met to 0.4 % of the points."""

FEWEST_FOR_SLOPE: Final = 10

# Moments of a stretch, a row each: how many finite points, their mean step and value, and the sums of
# squared deviations of steps, and of deviations of steps times deviations of values.
_COUNT, _STEP, _VALUE, _STEP_STEP, _STEP_VALUE = range(5)


class Curve:
    """The points of a tag, as stretches of 1, 2, 4, 8 … of them. Points that are not finite count but have no share."""

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
        """Return the least-squares slope of value over step, over the last tenth of the points, and over how many.

        At least ``FEWEST_FOR_SLOPE`` points make the last tenth, or all there are. None where they have one step.
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
    """Return the moments ``[5, S]`` of stretches that are made of one of each (Chan, Golub and LeVeque 1979)."""
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
