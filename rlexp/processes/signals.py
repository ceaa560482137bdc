"""Signals: the only place where handlers are installed, and the requests of Ctrl-C, SIGTERM and SIGHUP.

A StopRequest lets the trials of a run save and end; a second signal ends everything at once. A DrainRequest asks an
actor of a board to leave its seat, also after a time or when its parent has ended.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

END_TIMEOUT_S: Final = 25.0
"""Usual seconds for a run to end after the first signal; its trials need a part of that to save."""
TOGETHER_S: Final = 1.0
"""Seconds within which signals are one request: a terminal and a parent may both send SIGINT, and ``timeout`` sends
SIGTERM to a process, then to its whole group."""
BOUNCE_S: Final = 0.1
"""Seconds within which a second SIGINT is not somebody's second Ctrl-C: ``timeout -s INT`` sends two at once."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalHandlers:
    """Owns the handler of some signals from ``install`` to ``restore``.

    Python lets only the main thread handle signals; installed in another thread, it handles none. Ignored signals, such
    as SIGHUP below ``nohup``, stay ignored.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        handle: Callable[[int, FrameType | None], object],
        even_ignored: Sequence[int] = (),
    ) -> None:
        """Initialise; the ``numbers`` in ``even_ignored`` are handled although they are ignored now."""
        self._numbers, self._handle, self._even_ignored = numbers, handle, even_ignored
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals; a repeated call takes them back from a library with handlers of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._previous:
            found = {number: signal.getsignal(number) for number in self._numbers}
            self._previous = {
                number: handler
                for number, handler in found.items()
                if handler is not signal.SIG_IGN or number in self._even_ignored
            }
        for number in self._previous:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the earlier handlers; idempotent."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()


def let_ctrl_c_end() -> None:
    """Let Ctrl-C end this process at once, as the system does, instead of raising KeyboardInterrupt.

    Not if a shell ignores it, nor as a container's first process, which the system's default would not end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def let_ctrl_c_raise() -> None:
    """Undo ``let_ctrl_c_end``: Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class StopRequest:
    """Owns the handlers of SIGINT, SIGTERM and SIGHUP while it is entered.

    Before ``trials_may_save``, a signal raises KeyboardInterrupt, as there is nothing to save. Afterwards the first
    signal writes the stop file, which every trial checks; a second one raises KeyboardInterrupt, at any time. SIGHUP is
    sent when the terminal is closed, often twice, so it is never a second signal; neither is a SIGTERM or SIGINT right
    after the first. If SIGHUP is ignored (``nohup``), it stays ignored.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        self._on_request = on_request
        self._stop_file: Path | None = None
        self._end_timeout_s = END_TIMEOUT_S
        self._held_back = False
        self._handlers = SignalHandlers(_SIGNALS, self._handle, even_ignored=(signal.SIGINT, signal.SIGTERM))
        self._deadline_s = math.inf
        self._requested_s = -math.inf
        self.signal: int | None = None
        """The first signal that arrived, or None."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 and the signal's number: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let a first signal wait for the end of the body, which KeyboardInterrupt would leave incomplete.

        Also takes the handlers back from the body (Ray's start takes the one of SIGTERM).
        """
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = False
            self._handlers.install()
        if self.requested:
            raise KeyboardInterrupt

    def trials_may_save(self, stop_file: Path, end_timeout_s: float = END_TIMEOUT_S) -> None:
        """Let trials save from now on; the run may take ``end_timeout_s`` to end after the first signal."""
        self._stop_file, self._end_timeout_s = stop_file, end_timeout_s

    def check_deadline(self) -> None:
        """Raise KeyboardInterrupt, like a second signal, when the time after the first one is over."""
        if time.monotonic() > self._deadline_s:
            raise KeyboardInterrupt

    def __enter__(self) -> StopRequest:
        self._handlers.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Restore the handlers; raises SystemExit with ``exit_code`` unless Ctrl-C ended the body."""
        self._handlers.restore()
        if kind is KeyboardInterrupt and self.signal not in (None, signal.SIGINT):
            raise SystemExit(self.exit_code)

    def _is_sent_twice(self, number: int) -> bool:
        together_s = TOGETHER_S if number == signal.SIGTERM else BOUNCE_S
        return number == self.signal and time.monotonic() - self._requested_s < together_s

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


class DrainRequest:
    """Owns the handlers of the signals while it is entered; a second signal raises KeyboardInterrupt.

    In another thread than the main one, it handles no signals.
    """

    def __init__(self, limit_s: float | None = None, parent: int | None = None) -> None:
        """Also ask after ``limit_s`` seconds, and when ``parent`` is not the parent process any more."""
        self.signal: int | None = None
        """The first signal that arrived, or None."""
        self._requested_s = 0.0
        self._deadline_s = None if limit_s is None else time.monotonic() + limit_s
        self._parent = parent
        self._handlers = SignalHandlers(_SIGNALS, self._handle)

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
        self._handlers.install()
        return self

    def __exit__(self, *error: object) -> None:
        self._handlers.restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.signal is None:
            self.signal, self._requested_s = number, now_s
        elif now_s - self._requested_s > TOGETHER_S and number != signal.SIGHUP:
            raise KeyboardInterrupt
