"""The memory that a learner's process keeps, so that no update has to get it from the system again."""

from __future__ import annotations

import ctypes

# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_BLOCK = 1 << 28
"""Bytes of the largest block that is kept: more than any tensor of an update."""
LARGEST_BLOCK_OF_OLD = 1 << 25
"""What an older glibc, which refuses the other, allows at most."""
MOST_KEPT = 1 << 30
"""Bytes that are kept at most, all blocks together."""


def keep_freed_memory() -> None:
    """Let this process keep freed memory, as much as an update takes; does nothing where there is no glibc.

    glibc returns large blocks to the system. It then gets them back page by page, each one cleared first: for
    convolutions over 512 stacks of Atari frames that is more than half the time of an update.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if any(mallopt(M_MMAP_THRESHOLD, size) for size in (LARGEST_BLOCK, LARGEST_BLOCK_OF_OLD)):
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
        mallopt(M_ARENA_MAX, 1)  # the heaps of a thread of its own are small, and returned whatever the thresholds say
