"""Threads beside the main one: work with a time limit, Ray's thread, imports beside a wait, with few collections."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, TypeVar

from rlexp.errors import ResourceError

ALLOCATIONS_PER_COLLECTION: Final = 50_000
"""Allocations per collection, instead of 700. Imports allocate a million objects that stay, and each collection checks
them: without collections, importing Ray, Tune and torch takes a sixth less CPU time, and a light command's imports a
tenth less."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Run the body, which imports much, with few garbage collections.

    Use it only for imports, as later envs and policies may leave large arrays in cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Run the body, which imports or sets up a library, in an empty current folder without settings.

    The real folder may be a stranger's, and settings may name servers and programs. Not for processes with other
    threads that use relative paths.
    """
    import tempfile  # it loads more than the commands that begin with this module need

    here = os.open(".", os.O_PATH)  # its name may be gone
    try:
        with tempfile.TemporaryDirectory() as empty:
            os.chdir(empty)
            try:
                yield
            finally:
                os.fchdir(here)
    finally:
        os.close(here)


@contextmanager
def imported_meanwhile(modules: Sequence[str]) -> Iterator[None]:
    """Import ``modules`` one after another, from the start of the body, without waiting for the last at its end.

    A later import of one of them waits until it is done. If the body raises, the rest is left out, as the command ends
    and waits for the thread. A failed import is repeated, and reported, when it is needed.
    """
    is_cancelled = Event()

    def import_all() -> None:
        for module in modules:
            if is_cancelled.is_set():
                return
            with suppress(Exception), few_collections():  # a package that does not fit another raises anything
                import_module(module)

    thread = Thread(target=import_all, name="imports")
    thread.start()
    try:
        yield
    except BaseException:
        is_cancelled.set()
        raise


T = TypeVar("T")
Progress = Callable[[], None]
"""A function that the work calls after progress."""


def bounded(work: Callable[[Progress], T], stall_s: float, what: str) -> T:
    """Return the result of ``work``; raises its error, or ResourceError after ``stall_s`` without progress.

    The thread is then abandoned; it ends with the process.
    """
    future: Future[T] = Future()
    last_s = [time.monotonic()]

    def progress() -> None:
        last_s[0] = time.monotonic()

    threading.Thread(target=_complete, args=(future, lambda: work(progress)), name="storage", daemon=True).start()
    while not future.done():
        remaining_s = last_s[0] + stall_s - time.monotonic()
        if remaining_s <= 0:
            raise ResourceError(f"{what} has not answered for {stall_s:g} s", "look at its address and at the network")
        wait([future], remaining_s)
    return future.result()


def _complete(future: Future[T], function: Callable[[], T]) -> None:
    """Give ``future`` the result of ``function``, or its error."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


Function = Callable[[], object]

CHECK_INTERVAL_S = 0.25
LEAVE_TIMEOUT_S = 2.0
"""Seconds that the thread may take to end after ``leave``; Tune, unless Ray blocks it, takes 0.2 s."""


class RayThread:
    """Owns a daemon thread from construction to ``close``, which calls one function after another.

    A call of Ray may block for a minute, or for ever. Ray's servers end with the thread that started them, so all calls
    use the same thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Function, Future[object]] | None] = SimpleQueue()
        self._last: Future[object] | None = None
        threading.Thread(target=self._serve, name="ray", daemon=True).start()

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        """Call ``function`` and wait for its end; raises its error, or an error of a check meanwhile."""
        self._last = future = Future[object]()
        self._calls.put((function, future))
        while not future.done():
            for check in checks:
                check()
            wait([future], CHECK_INTERVAL_S)
        future.result()

    def is_free(self) -> bool:
        """Return whether the last function has ended, after at most LEAVE_TIMEOUT_S."""
        return self._last is None or bool(wait([self._last], LEAVE_TIMEOUT_S).done)

    def close(self) -> None:
        """Let the thread end when it is free."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            _complete(future, function)
