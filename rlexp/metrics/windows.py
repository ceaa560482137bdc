"""Statistics over the most recent episodes, and over the values since the last report."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlexp.errors import TrialError
from rlexp.sample_batch import Array

MOST_METRICS: Final = 100
"""Own metrics of a trial's episodes, each of which makes three columns; and as many of its iterations."""


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


class MetricWindows:
    """The last ``size`` values of each metric of the user's callbacks."""

    def __init__(self, size: int, names: Iterable[str] = ()) -> None:
        """``names`` are those that are known beforehand: they have statistics, of NaN, before they have values."""
        self._size = size
        self._windows: dict[str, deque[float]] = {name: deque(maxlen=size) for name in names}

    def extend(self, values: Mapping[str, Array]) -> None:
        """Add values ``[E]`` by name, oldest first; raises TrialError where there are more than MOST_METRICS names."""
        for name, added in values.items():
            self._window(name).extend(added.tolist())
        if len(self._windows) > MOST_METRICS:
            message = f"callbacks report more than {MOST_METRICS} own metrics: {', '.join(list(self._windows)[:5])} ..."
            raise TrialError(message, "report a few, by names that do not change from episode to episode")

    def state(self) -> dict[str, list[float]]:
        """Return the values."""
        return {name: list(window) for name, window in self._windows.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Add the values that ``state`` returned."""
        for name, values in state.items():
            self._window(name).extend(values)

    def summary(self) -> dict[str, float]:
        """Return mean, min and max of each metric, under RLlib's names."""
        return summarised({name: np.array(window) for name, window in self._windows.items()})

    def _window(self, name: str) -> deque[float]:
        return self._windows.setdefault(name, deque(maxlen=self._size))


def summarised(values: Mapping[str, Array]) -> dict[str, float]:
    """Return ``NAME_mean``, ``NAME_min`` and ``NAME_max`` of the values ``[E]`` of each name; NaN for those of none."""
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
        """Add one value."""
        self._sum += value
        self._count += 1

    def drain(self) -> float:
        """Return the mean, 0 if nothing was added, and reset it."""
        mean = self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0.0, 0
        return mean
