"""Values that change with a counter: exploration, importance-sampling exponents, learning rates."""

from __future__ import annotations

from dataclasses import dataclass


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
