"""RingMemory: what a segment holds for one replay shard, as both its writers and its reader see it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from rlexp.replay.shared.segment import Segment
from rlexp.replay.storage.array import ArrayStorage
from rlexp.sample_batch import Array

CACHE_LINE = 128
"""Bytes between two counters: a line of the widest caches, so that no writer's stores slow another's."""

_FENCE = threading.Lock()


@dataclass(frozen=True)
class RingSizes:
    """How a shard's memory is divided: a ring for each writer; every process must be told the same."""

    capacity: int
    """Rows kept, of all rings together."""
    num_rings: int
    headroom: int
    """Rows that a writer may be ahead of the reader: the most that it writes in one go without waiting."""

    def __post_init__(self) -> None:
        if min(self.capacity, self.num_rings, self.headroom) < 1:
            raise ValueError(f"rings need room for at least one row: {self}")

    @property
    def slots_per_ring(self) -> int:
        """Slots of each ring: its share of the rows kept, and the headroom."""
        return -(-self.capacity // self.num_rings) + self.headroom

    @property
    def num_slots(self) -> int:
        """Slots of all rings together."""
        return self.num_rings * self.slots_per_ring

    def shares(self) -> Array:
        """Return the rows kept of each ring ``[num_rings]`` (int64), ``capacity`` together."""
        shares: Array = (self.capacity + np.arange(self.num_rings)) // self.num_rings
        return shares


class RingMemory:
    """The rings of one shard: ``slots_per_ring`` slots each, one ring behind the other.

    Row ``number`` of a ring, counted from 0 for ever, lies in its slot ``number % slots_per_ring``. A
    writer writes only rows from ``written`` to before ``released + slots_per_ring``; the reader reads
    only rows from ``released`` to before ``written``. No row is therefore ever written while it may be
    read, and there is nothing to lock: each counter has one process that moves it, and that one moves
    it only when it is done with the rows. Where a writer dies within a row, ``written`` does not say so.
    """

    def __init__(self, segment: Segment, sizes: RingSizes) -> None:
        """Take the segment's first arrays; the columns' are taken when a batch shows what they are."""
        counters = segment.array((2, sizes.num_rings, CACHE_LINE // 8), np.int64)
        self.written: Array = counters[0, :, 0]
        """Rows that each writer has completed ``[num_rings]``."""
        self.released: Array = counters[1, :, 0]
        """Rows of each ring that are not read any more ``[num_rings]``."""
        self.td_errors = segment.array((sizes.num_slots,), np.float32)
        """The first TD errors, read once: apart from the columns, and never touched where there are none."""
        self.storage = ArrayStorage(sizes.num_slots, segment.array)


def fence() -> None:
    """Let everything that this thread read and wrote before be done before anything that it reads or writes after.

    Between rows and the counter that speaks of them. x86 needs none here, because it keeps the order of loads
    and that of stores; other machines do not. Python has no fence, but a lock's release waits for what came
    before, and what comes after waits for a lock's acquisition: hence one pair after the other, in this order.
    """
    with _FENCE:
        pass
    with _FENCE:
        pass
