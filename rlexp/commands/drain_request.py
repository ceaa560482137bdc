"""Ctrl-C, SIGTERM, SIGHUP, a time limit or the end of the parent: each asks an actor to leave its seat."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Final

TOGETHER_S: Final = 1.0
"""Signals that come within this time are one request: a terminal and a parent may both send them."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DrainRequest:
    """Owns the handlers of the signals while it is entered; a second signal raises KeyboardInterrupt.

    Entered in another thread than the main one, it handles none.
    """

    def __init__(self, limit_s: float | None = None, parent: int | None = None) -> None:
        """Ask after ``limit_s`` seconds too, and once ``parent`` is not the parent process any more."""
        self.signal: int | None = None
        """The first signal that came, or None."""
        self._requested_s = 0.0
        self._deadline_s = None if limit_s is None else time.monotonic() + limit_s
        self._parent = parent
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Return whether to leave."""
        if self._parent is not None and os.getppid() != self._parent:
            return True
        is_over_time = self._deadline_s is not None and time.monotonic() >= self._deadline_s
        return self.signal is not None or is_over_time

    @property
    def exit_code(self) -> int:
        """128 and the signal's number (130 for Ctrl-C); 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> DrainRequest:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets only the main thread handle signals: of a program that joins in another one
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.signal is None:
            self.signal, self._requested_s = number, now_s
        elif now_s - self._requested_s > TOGETHER_S and number != signal.SIGHUP:
            raise KeyboardInterrupt
