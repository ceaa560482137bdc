"""The thread in which Ray is called, so that the main thread can answer signals and see what Ray does not say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue

Function = Callable[[], object]

CHECK_INTERVAL_S = 0.25
LEAVE_TIMEOUT_S = 2.0
"""How long the thread may take to end after ``leave``; Tune, unless Ray blocks it, takes 0.2 s."""


class RayThread:
    """Owns a daemon thread from construction to ``close``; it calls one function after the other.

    A call of Ray's may block for a minute, or for ever. Ray's servers end with the thread that has started them, so
    it is the same one for all.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Function, Future[object]] | None] = SimpleQueue()
        self._last: Future[object] | None = None
        threading.Thread(target=self._serve, name="ray", daemon=True).start()

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        """Call ``function`` and wait for its end; raises what it raises, or what one of the checks raises meanwhile."""
        self._last = future = Future[object]()
        self._calls.put((function, future))
        while not future.done():
            for check in checks:
                check()
            wait([future], CHECK_INTERVAL_S)
        future.result()

    def is_free(self) -> bool:
        """Return whether the last function has ended, after LEAVE_TIMEOUT_S at the latest."""
        return self._last is None or bool(wait([self._last], LEAVE_TIMEOUT_S).done)

    def close(self) -> None:
        """Let the thread end when it is free."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
