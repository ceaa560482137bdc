"""Episode statistics over a window of recent episodes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from rlexp.sample_batch import Array


@dataclass(frozen=True)
class EpisodeSummary:
    """Statistics over the window; NaN while it is empty."""

    reward_mean: float
    reward_min: float
    reward_max: float
    len_mean: float


class EpisodeWindow:
    """The last ``size`` episodes that ended."""

    def __init__(self, size: int) -> None:
        self._returns: deque[float] = deque(maxlen=size)
        self._lengths: deque[int] = deque(maxlen=size)

    def extend(self, returns: Array, lengths: Array) -> None:
        """Add episodes: returns ``[E]`` and lengths ``[E]``, oldest first."""
        self._returns.extend(returns.tolist())
        self._lengths.extend(lengths.tolist())

    def summary(self) -> EpisodeSummary:
        """Return the statistics of the episodes in the window."""
        if not self._returns:
            return EpisodeSummary(math.nan, math.nan, math.nan, math.nan)
        returns = np.fromiter(self._returns, float)
        return EpisodeSummary(
            float(returns.mean()), float(returns.min()), float(returns.max()), float(np.mean(self._lengths))
        )
