"""Statistics over the most recent episodes, and over the values since the last report."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def state(self) -> dict[str, list[Any]]:
        """Return the episodes' returns and lengths."""
        return {"returns": list(self._returns), "lengths": list(self._lengths)}

    def load(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Add the episodes that ``state`` returned; the window may be smaller than theirs."""
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])

    def summary(self) -> EpisodeSummary:
        """Return the statistics of the episodes in the window."""
        if not self._returns:
            return EpisodeSummary(math.nan, math.nan, math.nan, math.nan)
        returns = np.fromiter(self._returns, float)
        return EpisodeSummary(
            float(returns.mean()), float(returns.min()), float(returns.max()), float(np.mean(self._lengths))
        )


class Mean:
    """The mean of the values added since the last ``drain``."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Add one value."""
        self._sum += value
        self._count += 1

    def drain(self) -> float:
        """Return the mean, 0 if nothing was added, and reset it."""
        mean = self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0.0, 0
        return mean
