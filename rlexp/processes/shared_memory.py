"""Segment: memory that processes of one machine share, and that no death of any of them can leave behind; its fence."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from rlexp.errors import ResourceError
from rlexp.sample_batch import Array

_FENCE = threading.Lock()


def fence() -> None:
    """Let everything that this thread read and wrote before be done before anything that it reads or writes after.

    Between rows or weights and the counter that speaks of them. x86 needs none here, because it keeps the order of
    loads and that of stores; other machines do not. Python has no fence, but a lock's release waits for what came
    before, and what comes after waits for a lock's acquisition: hence one pair after the other, in this order.
    """
    with _FENCE:
        pass
    with _FENCE:
        pass


CACHE_LINE = 128
"""Bytes between two counters: a line of the widest caches, so that no writer's stores slow another's."""
HINT = "-o config.replay_storage=actors"


@dataclass(frozen=True)
class SegmentHandle:
    """What another process needs to open a segment; travels by value."""

    pid: int
    """The process that made it, which has to live until it is opened."""
    fd: int
    """That process's file descriptor."""
    name: str
    """A long random word: proves that the descriptor is the segment's, and the process not a stranger's."""

    def open(self) -> Segment:
        """Return the segment, to be used by this process too; ResourceError where there is no such process here."""
        path = f"/proc/{self.pid}/fd/{self.fd}"
        with suppress(OSError):
            if os.readlink(path) == f"/memfd:{self.name} (deleted)":
                return Segment(os.open(path, os.O_RDWR | os.O_CLOEXEC), self.name)
        raise ResourceError(
            f"this process cannot reach the memory of the learner's process (pid {self.pid}): "
            "shared replay needs every process that adds rows on the learner's machine",
            HINT,
        )


class Segment:
    """Anonymous memory (``memfd_create``, Linux) that holds arrays; each process that uses it has one of these.

    It has a name in no file system, so there is nothing to remove: the kernel frees it with the last
    process that has it open, however that one dies. A page takes memory once it was written to.

    Processes that ask for the same arrays in the same order get the same memory.
    """

    def __init__(self, fd: int, name: str) -> None:
        """Own the file descriptor ``fd``; use :meth:`create` or :meth:`SegmentHandle.open`."""
        self._fd = fd
        self._name = name
        self._end = 0
        self._close = weakref.finalize(self, os.close, fd)

    @staticmethod
    def create() -> Segment:
        """Return a new segment without any array; raises ResourceError where the system has none."""
        if not hasattr(os, "memfd_create"):
            raise ResourceError("this system has no anonymous shared memory: shared replay is for Linux", HINT)
        name = f"rlexp-{secrets.token_hex(16)}"
        try:
            segment = Segment(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), name)
            fcntl.fcntl(segment._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError as error:  # a sandbox may forbid it
            raise ResourceError(f"this system gives no anonymous shared memory: {error}", HINT) from error
        return segment

    @property
    def handle(self) -> SegmentHandle:
        """What another process opens it by, while this one lives and has not closed it."""
        return SegmentHandle(os.getpid(), self._fd, self._name)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the next array, of zeros before anybody wrote to it; it stays valid after :meth:`close`.

        ValueError for a segment that is closed: its descriptor may be another file's by now.
        """
        if not self._close.alive:
            raise ValueError("the segment is closed")
        dtype = np.dtype(dtype)
        start, nbytes = self._end, math.prod(shape) * dtype.itemsize
        self._end += -(-max(nbytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        # Sealed against shrinking: of two processes that lengthen it at once, neither can cut off the other's part.
        with suppress(PermissionError):
            os.ftruncate(self._fd, self._end)
        return np.ndarray(shape, dtype, mmap.mmap(self._fd, self._end - start, offset=start))

    def close(self) -> None:
        """Let no further process in, and give the memory back when the arrays are gone; idempotent."""
        self._close()
