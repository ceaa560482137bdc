"""The pieces of a run, each measured alone in pauses of that run: a machine whose speed changes is as fast for both."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from threading import Event, Thread
from types import TracebackType

import psutil

from benchmarks.comparison import Work
from rlexp.cluster.environment import set_ray_environment

RUNNING_S = 1.0
"""How long a run goes on between two pauses."""
MEASURED_S = 0.2
"""How long each piece works in a pause, at least once."""
TRAINING = "Trainable.train"
"""In the title of the process of a trial, from its first iteration on."""


class PiecesInPauses:
    """Pauses what this process has started while it is entered, again and again, and measures pieces meanwhile.

    Each piece has a process of its own, which waits otherwise. The first pause comes once a trial trains.
    """

    def __init__(self, pieces: Mapping[str, Callable[[], Work]], start_timeout_s: float) -> None:
        """Make each piece in its process within ``start_timeout_s``; the functions can be pickled."""
        set_ray_environment(debug=False)
        spawned = get_context("spawn")
        self._executors = {name: ProcessPoolExecutor(1, spawned, _make, (make,)) for name, make in pieces.items()}
        self._done = dict.fromkeys(pieces, 0)
        self._spent_s = dict.fromkeys(pieces, 0.0)
        self._pauses: list[tuple[float, float]] = []
        self._ended = Event()
        self._thread = Thread(target=self._pause_again_and_again, name="pauses", daemon=True)
        for executor in self._executors.values():
            executor.submit(_measure, 0.0).result(start_timeout_s)

    def __enter__(self) -> PiecesInPauses:
        self._own = {process.pid for process in psutil.Process().children(recursive=True)}
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        for executor in self._executors.values():
            executor.shutdown()

    def per_second(self, name: str) -> float:
        """Return what piece ``name`` did in a second of all pauses; raises SystemExit where there was none."""
        if not self._pauses:
            raise SystemExit("the run ended before its first pause: give it more --seconds")
        return self._done[name] / self._spent_s[name]

    def paused_s(self, start: float, stop: float) -> float:
        """Return how long the run was paused between two moments of the monotonic clock."""
        return sum(max(min(ended, stop) - max(began, start), 0.0) for began, ended in self._pauses)

    def _pause_again_and_again(self) -> None:
        while not self._ended.wait(RUNNING_S):
            processes = self._processes_of_run()
            if any(TRAINING in _title(process) for process in processes):
                self._pause(processes)

    def _pause(self, processes: list[psutil.Process]) -> None:
        began = time.monotonic()
        try:
            _send(signal.SIGSTOP, processes)
            for name, executor in self._executors.items():
                done, spent_s = executor.submit(_measure, MEASURED_S).result()
                self._done[name] += done
                self._spent_s[name] += spent_s
        finally:
            _send(signal.SIGCONT, processes)
            self._pauses.append((began, time.monotonic()))

    def _processes_of_run(self) -> list[psutil.Process]:
        return [each for each in psutil.Process().children(recursive=True) if each.pid not in self._own]


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return "".join(process.cmdline()[:1])
    return ""


def _send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


_works: list[Work] = []
"""In the process of a piece: what it does."""


def _make(make: Callable[[], Work]) -> None:
    _works.append(make())


def _measure(seconds: float) -> tuple[int, float]:
    """Return how much the piece of this process does in ``seconds``, and how long that took; once is not counted."""
    _works[0]()
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < seconds:
        done += _works[0]()
    return done, time.perf_counter() - start
