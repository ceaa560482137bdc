"""How much of a thread's time each part takes, and a clock that does not count while the process is stopped."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

LONGEST_GAP_S: Final = 2.0
"""Most seconds that a RunningClock counts between two calls."""


@dataclass(frozen=True)
class Laps:
    """Seconds by part, and the seconds that passed."""

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
        """Return the laps since the last call and reset them."""
        now = time.perf_counter()
        laps = Laps(now - self._since, dict(self._parts_s))
        self._since = now
        self._parts_s.clear()
        return laps


class RunningClock:
    """The seconds in which this process was running; called every few seconds, by one thread.

    A process that was stopped (Ctrl-Z, SIGSTOP, a machine that slept) must not regard all others as hung when it
    continues: they were stopped too, or have delivered results that it has not received yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds that never decrease."""
        self._clock = clock
        self._looked_s = clock()
        self._counted_s = 0.0

    def __call__(self) -> float:
        """Return the seconds counted so far."""
        now = self._clock()
        self._counted_s += min(now - self._looked_s, LONGEST_GAP_S)
        self._looked_s = now
        return self._counted_s
