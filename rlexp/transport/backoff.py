"""How long to wait before a server is tried again."""

from __future__ import annotations

import random
from typing import Final

LONGEST_S: Final = 30.0


class Backoff:
    """Seconds to wait after each failure in a row: 1, 2, 4 … 30, each up to a quarter less, so that many differ."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next_s = 1.0

    def failed(self) -> float:
        """Return how long to wait after another failure."""
        wait_s = self._next_s * (1 - 0.25 * self._random.random())
        self._next_s = min(2 * self._next_s, LONGEST_S)
        return wait_s

    def succeeded(self) -> None:
        """Begin anew with the next failure."""
        self._next_s = 1.0
