"""Imports that take less, or see less: few collections, beside the wait for another process, not the current folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event, Thread
from typing import Final

ALLOCATIONS_PER_COLLECTION: Final = 50_000
"""Instead of 700. Imports allocate a million objects that stay, and collections look at them again and again: without
them, importing Ray, Tune and torch takes a sixth less CPU time, and what a light command needs a tenth less."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the body, which imports much, run with few collections of garbage.

    Only imports do: envs and policies that are made later may leave large arrays in cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Let the body, which imports or sets up a library, find no settings in the current folder: an empty one is there.

    The folder may be a stranger's, and settings may name servers and programs. Not for processes with other threads
    that use relative paths.
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
    """Import ``modules`` one after the other, beginning with the body, and without waiting for the last at its end.

    Whoever imports one of them later waits until it is there. Where the body raises, the rest is left out: the command
    ends, for which the thread is waited for. An import that fails is repeated, and reported, where it is needed.
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
