"""Segment: memory that processes of one machine share and that vanishes with the last of them; its memory fence."""

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
    """Complete all earlier reads and writes of this thread before all later ones.

    Used between rows or weights and their counter. x86 needs no fence here, as it keeps the order of loads and the
    order of stores; other machines do not. Python has no fence, but a lock's release waits for earlier accesses, and
    later accesses wait for a lock's acquisition. Hence one pair after another, in this order.
    """
    with _FENCE:
        pass
    with _FENCE:
        pass


CACHE_LINE = 128
"""Bytes between two counters: a line of the widest caches, so that a writer's stores do not slow another's."""
HINT = "-o config.replay_storage=actors"


@dataclass(frozen=True)
class SegmentHandle:
    """The data that another process needs to open a segment; sent by value."""

    pid: int
    """The process that made it, which must live until it is opened."""
    fd: int
    """That process's file descriptor."""
    name: str
    """A long random word, which proves that the descriptor is the segment's and the process is not a stranger's."""

    def open(self) -> Segment:
        """Return the segment for use by this process too; ResourceError if there is no such process here."""
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

    It has no name in any file system, so nothing needs to be removed: the kernel frees it with the last process that
    has it open, however that one dies. A page takes memory after it was written to.

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
        """Return a new segment without any array; raises ResourceError if the system has none."""
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
        """The handle with which another process opens it, while this one lives and has not closed it."""
        return SegmentHandle(os.getpid(), self._fd, self._name)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the next array, zero before the first write; it stays valid after :meth:`close`.

        ValueError if the segment is closed, as its descriptor may be another file's now.
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
        """Refuse new processes, and free the memory when the arrays are gone; idempotent."""
        self._close()
