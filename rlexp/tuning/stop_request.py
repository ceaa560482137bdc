"""Ctrl-C, SIGTERM and SIGHUP: the first one asks the trials to save and end, a second one ends everything at once."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

END_TIMEOUT_S = 25.0
"""How long a run may usually take to end after the first signal; its trials need a part of that to save."""
TOGETHER_S = 1.0
"""SIGTERMs that come within this time are one request: ``timeout`` sends it to a process, then to its whole group."""


class StopRequest:
    """Owns the handlers of SIGINT, SIGTERM and SIGHUP while it is entered.

    Before ``trials_may_save`` a signal raises KeyboardInterrupt: there is nothing to save. Afterwards the
    first one writes the stop file, which every trial checks; a second one raises KeyboardInterrupt, at any time.
    SIGHUP is sent when the terminal is closed, often twice, so it never counts as a second one; nor does a SIGTERM
    right after the first. Where SIGHUP is ignored (``nohup``) it stays ignored.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        self._on_request = on_request
        self._stop_file: Path | None = None
        self._end_timeout_s = END_TIMEOUT_S
        self._held_back = False
        self._previous: dict[int, Any] = {}
        self._deadline_s = math.inf
        self._requested_s = -math.inf
        self.signal: int | None = None
        """The first signal that came, or None."""

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 and the signal's number: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let a first signal wait for the end of the body, which KeyboardInterrupt would leave in pieces.

        Also takes the handlers back from the body (Ray's start takes that of SIGTERM).
        """
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = False
            self._install()
        if self.requested:
            raise KeyboardInterrupt

    def trials_may_save(self, stop_file: Path, end_timeout_s: float = END_TIMEOUT_S) -> None:
        """From now on let trials save; the run may take so long to end after the first signal."""
        self._stop_file, self._end_timeout_s = stop_file, end_timeout_s

    def check_deadline(self) -> None:
        """Raise KeyboardInterrupt, as a second signal does, when the time to end after the first one is over."""
        if time.monotonic() > self._deadline_s:
            raise KeyboardInterrupt

    def __enter__(self) -> StopRequest:
        handled = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handled.append(signal.SIGHUP)
        self._previous = {number: signal.getsignal(number) for number in handled}
        self._install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _is_sent_twice(self, number: int) -> bool:
        return number == self.signal == signal.SIGTERM and time.monotonic() - self._requested_s < TOGETHER_S

    def _install(self) -> None:
        for number in self._previous:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        if again and (number == signal.SIGHUP or self._is_sent_twice(number)):
            return
        if not again:
            self.signal, self._requested_s = number, time.monotonic()
        if self._held_back and not again:
            return
        if self._stop_file is None or again:
            raise KeyboardInterrupt
        self._deadline_s = time.monotonic() + self._end_timeout_s
        with suppress(FileNotFoundError):  # the run's directory is missing, which RunDirectory.check reports
            os.close(os.open(self._stop_file, os.O_CREAT | os.O_WRONLY))
        self._on_request()
