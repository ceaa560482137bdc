"""Where a thread's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Laps:
    """Seconds by part, out of the seconds that passed."""

    elapsed_s: float
    parts_s: dict[str, float]


class Stopwatch:
    """Adds up the time spent in named parts between two ``drain`` calls; for one thread."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._parts_s: dict[str, float] = defaultdict(float)

    @contextmanager
    def lap(self, part: str) -> Iterator[None]:
        """Count the time of the ``with`` body towards ``part``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._parts_s[part] += time.perf_counter() - started

    def drain(self) -> Laps:
        """Return the laps since the last call and begin anew."""
        now = time.perf_counter()
        laps = Laps(now - self._since, dict(self._parts_s))
        self._since = now
        self._parts_s.clear()
        return laps
