"""Work in a thread that is given up when it makes no progress: a server may accept a call and never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from rlexp.errors import ResourceError

T = TypeVar("T")
Progress = Callable[[], None]
"""What the work calls when it has come further."""


def bounded(work: Callable[[Progress], T], stall_s: float, what: str) -> T:
    """Return what ``work`` returns; raises what it raises, or ResourceError after ``stall_s`` without progress.

    The thread is left alone then; it ends with the process.
    """
    future: Future[T] = Future()
    last_s = [time.monotonic()]

    def progress() -> None:
        last_s[0] = time.monotonic()

    def run() -> None:
        try:
            future.set_result(work(progress))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="storage", daemon=True).start()
    while not future.done():
        remaining_s = last_s[0] + stall_s - time.monotonic()
        if remaining_s <= 0:
            raise ResourceError(f"{what} has not answered for {stall_s:g} s", "look at its address and at the network")
        wait([future], remaining_s)
    return future.result()
