"""Draws again and again while the command itself is busy: Ray takes seconds to start and to end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Final

_PERIOD_S: Final = 0.2


class Clock:
    """Owns a thread between ``start`` and ``stop``; whoever draws by it must allow calls from that thread."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw = draw
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to draw; a second call does nothing."""
        if self._thread is None:
            self._stopped = Event()
            self._thread = Thread(target=self._run, args=(self._stopped,), name="display-clock", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, once a drawing that has begun is done; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()

    def _run(self, stopped: Event) -> None:
        while not stopped.wait(_PERIOD_S):
            self._draw()
