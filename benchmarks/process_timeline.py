"""The processes that a command starts, over time: when each began and ended, and the CPU time that it used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

INTERVAL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LONGEST_NAME = 60


@dataclass
class SeenProcess:
    """A process that was seen at least once."""

    pid: int
    parent: int
    name: str
    began_s: float
    """Seconds since the watch began; by INTERVAL_S late at most."""
    ended_s: float | None = None
    cpu_s: float = 0.0


class ProcessTimeline:
    """Watches all processes that this one starts while it is entered, also those whose parents have ended.

    It reads ``/proc`` fifty times a second, which takes some hundredths of a core; Linux only.
    """

    def __init__(self) -> None:
        self.seen: dict[int, SeenProcess] = {}
        self._ignored = {int(name) for name in os.listdir("/proc") if name.isdecimal()} | {os.getpid()}
        self._start = time.monotonic()
        self._is_over = Event()
        self._thread = Thread(target=self._watch, name="timeline", daemon=True)

    def __enter__(self) -> ProcessTimeline:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def now_s(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._start

    def _watch(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        now, alive = self.now_s, {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        for pid in sorted(alive - self._ignored):  # a parent's number is smaller than its child's, as a rule
            status = _status(pid)
            if status is None:
                continue
            parent, cpu_s = status
            if pid not in self.seen:
                if parent != os.getpid() and parent not in self.seen:
                    continue
                self.seen[pid] = SeenProcess(pid, parent, "", now)
            process = self.seen[pid]
            process.cpu_s = cpu_s
            if now - process.began_s < 1 or not process.name:  # it may have another program after a fork
                process.name = _name(pid) or process.name
        for process in self._that_ended(alive):
            process.ended_s = now

    def _that_ended(self, alive: set[int]) -> Iterator[SeenProcess]:
        return (each for each in self.seen.values() if each.ended_s is None and each.pid not in alive)


def _status(pid: int) -> tuple[int, float] | None:
    """Return a process's parent and its CPU seconds; None where it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return None


def _name(pid: int) -> str:
    """Return what a process runs, short: the program, and for Python its module or script."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        first = Path(words[0]).name
        if not first.startswith("python"):
            return words[0][-_LONGEST_NAME:] if words[0].startswith("ray::") else first
        named = [word for word in words[1:] if not word.startswith("-")]
        return f"python {Path(named[0]).name if named else ''}"[:_LONGEST_NAME]
    return ""
