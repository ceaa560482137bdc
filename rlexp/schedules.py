"""Values that follow only from others: values that change with a counter, and seeds.

Exploration, importance-sampling exponents and learning rates change as training goes on; one seed in a file gives every
env, worker, shard, sample and learner a stream of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True)
class LinearSchedule:
    """Goes from ``initial`` to ``final`` over ``timesteps``, then stays."""

    initial: float
    final: float
    timesteps: int
    """Counter value at which ``final`` is reached; 0 or less: at once."""

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


LARGEST_SEED: Final = 2**32 - 1
"""The largest seed that NumPy, Gymnasium and torch all accept."""


def derive_seed(seed: int, *stream: str | int) -> int:
    """Return a 31-bit seed for the stream named ``stream`` (such as ``("worker", 3)``).

    The same arguments give the same seed on every machine and Python; different streams are
    independent for all practical purposes (SHA-256). 31 bits fit what Gymnasium, NumPy and torch accept.
    """
    text = "/".join(str(part) for part in (seed, *stream))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
