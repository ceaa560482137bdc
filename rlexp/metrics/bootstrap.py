"""Confidence intervals without assumptions about the distribution."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import Array

RESAMPLES = 10_000


def bootstrap_interval(values: Array, rng: np.random.Generator, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of ``values [N]`` (Efron 1979)."""
    draws = rng.integers(len(values), size=(RESAMPLES, len(values)))
    means = values[draws].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)
