"""Directions in which weights are changed: noise by seed, and what the returns of episodes say about a step.

A direction is played twice, with the noise added and taken away. Its seed is sent instead of the noise.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.sample_batch import Array

SEEDS: Final = "seeds"
"""The column of each direction's seed ``[B]``."""
RETURNS: Final = "returns"
"""The column of its two returns ``[B, 2]``: with the noise added, and taken away."""


def noise(seed: int, size: int) -> Array:
    """Return ``size`` numbers of a standard normal distribution; the same for a seed with any process's NumPy."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def centered_ranks(returns: Array) -> Array:
    """Return the ranks of ``returns [...]``, scaled to -0.5 .. 0.5; equal returns share their mean rank.

    Salimans et al. 2017, section 2.1. Without shared ranks, episodes that all reach an env's limit would be ordered by
    chance, and the weights would move by it.

    >>> centered_ranks(np.array([3.0, 1.0, 1.0, 9.0, 4.0])).tolist()
    [0.0, -0.375, -0.375, 0.5, 0.25]
    """
    values, places, counts = np.unique(returns, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    ranks: Array = means[places].reshape(returns.shape) / max(returns.size - 1, 1) - 0.5
    return ranks if len(values) > 1 else np.zeros(returns.shape)


def weights_of_ranks(returns: Array) -> Array:
    """Return the weight of each direction's noise ``[B]`` in ES, from ``returns [B, 2]``."""
    ranks = centered_ranks(returns)
    weights: Array = (ranks[:, 0] - ranks[:, 1]) / returns.size
    return weights


def weights_of_best(returns: Array, num_used: int) -> Array:
    """Return the weight of each direction's noise ``[B]`` in ARS, from ``returns [B, 2]`` (Mania et al. 2018, V1-t).

    The ``num_used`` directions with the best better return are used; others weigh 0. Differences are divided by the
    standard deviation of all returns that are used.
    """
    best = np.argsort(-returns.max(axis=1), kind="stable")[:num_used]
    deviation = returns[best].std()
    weights = np.zeros(len(returns))
    if deviation > 0:
        weights[best] = (returns[best, 0] - returns[best, 1]) / (len(best) * deviation)
    return weights


def added_up(seeds: Array, weights: Array, size: int) -> Array:
    """Return the sum ``[size]`` of the noises of ``seeds [B]``, each times its weight ``[B]``.

    Only one noise is in memory at a time.
    """
    total = np.zeros(size, np.float32)
    for seed, weight in zip(seeds.tolist(), weights.tolist(), strict=True):
        if weight:
            total += np.float32(weight) * noise(seed, size)
    return total
