"""Values that change with a counter: exploration, importance-sampling exponents, learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class LinearSchedule:
    """Goes from ``initial`` to ``final`` over ``timesteps``, then stays."""

    initial: float
    final: float
    timesteps: int
    """Counter value at which ``final`` is reached; 0 or less means at once."""

    def value(self, t: int) -> float:
        """Return the value at counter ``t >= 0``."""
        progress = min(t / self.timesteps, 1.0) if self.timesteps > 0 else 1.0
        return self.initial + progress * (self.final - self.initial)


@dataclass(frozen=True)
class PiecewiseSchedule:
    """Moves linearly from point to point; before the first and after the last it stays."""

    points: tuple[tuple[float, float], ...]
    """Pairs of a counter and the value there, with ascending counters; at least one."""

    def value(self, t: float) -> float:
        """Return the value at counter ``t``."""
        if t <= self.points[0][0]:
            return self.points[0][1]
        for (start, first), (end, last) in pairwise(self.points):
            if t < end:
                return first + (t - start) / (end - start) * (last - first)
        return self.points[-1][1]
