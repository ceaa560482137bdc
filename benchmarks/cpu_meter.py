"""The CPU seconds of all processes that this one starts, over time: other load on a machine changes them little."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType

import psutil

INTERVAL_S = 0.2
"""How often the processes are looked at. The last such part of each one's life is missing."""


class CpuMeter:
    """Adds up user and system time while it is entered; processes that began before do not count.

    A process counts from its start, also after its parent has ended. Each look costs some milliseconds of CPU time of
    this process, which does not count.
    """

    def __init__(self) -> None:
        self._seconds: dict[psutil.Process, float] = {}
        self._times: list[float] = [0.0]
        self._sums: list[float] = [0.0]
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="cpu-meter", daemon=True)

    def __enter__(self) -> CpuMeter:
        self._own = psutil.Process(os.getpid())
        self._ignored = set(self._own.children(recursive=True))
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def total_s(self) -> float:
        """CPU seconds so far."""
        return self._sums[-1]

    def at(self, seconds: float) -> float:
        """Return the CPU seconds that had been used ``seconds`` after the meter was entered."""
        times, sums = list(self._times), list(self._sums)
        after = bisect_left(times, seconds)
        if after == len(times):
            return sums[-1]
        if after == 0:
            return sums[0]
        share = (seconds - times[after - 1]) / (times[after] - times[after - 1])
        return sums[after - 1] + share * (sums[after] - sums[after - 1])

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for process in {*self._own.children(recursive=True), *self._seconds} - self._ignored:
            with suppress(psutil.Error):
                used = process.cpu_times()
                self._seconds[process] = used.user + used.system
        self._sums.append(sum(self._seconds.values()))
        self._times.append(time.monotonic() - self._start)
