"""RingMemory: what a segment holds for one replay shard, and the worker's end of it, which writes rows there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlexp.processes.shared_memory import CACHE_LINE, Segment, SegmentHandle, fence
from rlexp.replay.storage.array import ArrayStorage
from rlexp.sample_batch import TD_ERRORS, Array, Column, SampleBatch, WrittenRows

FULL_TIMEOUT_S = 60.0
"""Bound of a writer's wait for room. The learner's process takes rows in several times a second."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5e-5, 5e-3
"""Between two looks for room; each pause is twice the one before."""


@dataclass(frozen=True)
class RingSizes:
    """How a shard's memory is divided: a ring for each writer; the same in every process."""

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

    Row ``number`` of a ring, counted from 0 for ever, is in its slot ``number % slots_per_ring``. A
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

    def close(self) -> None:
        """Give the memory back, counters too: each mapping keeps a descriptor open; a second call does nothing."""
        self.storage.close()
        self.td_errors = np.empty(0, np.float32)
        self.written = self.released = np.empty(0, np.int64)


class RingWriter:
    """Writes into one ring, of which it is the only writer; it continues where the one before it stopped."""

    def __init__(self, memory: RingMemory, sizes: RingSizes, ring: int, full_timeout_s: float = FULL_TIMEOUT_S) -> None:
        self.num_written = int(memory.written[ring])
        """Rows written into this ring, ever."""
        self._memory = memory
        self._ring = ring
        self._slots = sizes.slots_per_ring
        self._full_timeout_s = full_timeout_s

    def write(self, batch: SampleBatch, td_errors: Array | None) -> int:
        """Write the rows of ``batch [B]`` and their ``td_errors [B]``; return the first one's number.

        Waits where the ring is full: raises TimeoutError when nothing is released in time. The rows
        completed before that remain. A batch larger than the ring is written in parts.
        """
        first, done = self.num_written, 0
        while done < len(batch):
            start = self.num_written % self._slots
            stop = min(done + self._wait_for_room(), done + self._slots - start, len(batch))
            self._write_run(start, batch.slice(done, stop), None if td_errors is None else td_errors[done:stop])
            done = stop
        return first

    def _write_run(self, start: int, batch: SampleBatch, td_errors: Array | None) -> None:
        slot = self._ring * self._slots + start
        self._memory.storage.write(slot, batch)
        if td_errors is not None:
            self._memory.td_errors[slot : slot + len(batch)] = td_errors
        fence()
        self.num_written += len(batch)
        self._memory.written[self._ring] = self.num_written

    def _wait_for_room(self) -> int:
        """Return how many rows may be written, at least one."""
        room = self._room()
        if room:
            return room
        started, pause_s = time.monotonic(), SHORTEST_PAUSE_S
        while not room:
            if time.monotonic() - started > self._full_timeout_s:
                raise TimeoutError(f"replay took no rows from ring {self._ring} for {self._full_timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            room = self._room()
        return room

    def _room(self) -> int:
        room = int(self._memory.released[self._ring]) + self._slots - self.num_written
        fence()
        return room


class SharedRowWriter:
    """Deals a worker's batches to the shards at random, each into the worker's own ring of that shard.

    The agent makes it and gives it to the worker, in whose process it opens the memory when it is first used.
    """

    def __init__(self, segments: Sequence[SegmentHandle], sizes: RingSizes, ring: int, seed: int) -> None:
        """Write into ring ``ring`` of each shard's segment."""
        self._segments = tuple(segments)
        self._sizes = sizes
        self._ring = ring
        self._rng = np.random.default_rng(seed)
        self._writers: dict[int, RingWriter] = {}

    def write(self, batch: SampleBatch) -> WrittenRows:
        """Write ``batch [B]`` and return where it is; raises TimeoutError when there is no room for too long."""
        shard = int(self._rng.integers(len(self._segments)))
        # By name: the columns are stored in the order in which they are given, which must be the same for all writers.
        stored = SampleBatch({name: batch[name] for name in sorted(batch) if name != TD_ERRORS})
        td_errors = batch.columns.get(TD_ERRORS)
        first = self._writer(shard).write(stored, td_errors)
        columns = tuple(Column(name, array.dtype.str, array.shape[1:]) for name, array in stored.columns.items())
        return WrittenRows(shard, self._ring, first, len(batch), columns, td_errors is not None)

    def _writer(self, shard: int) -> RingWriter:
        if shard not in self._writers:
            memory = RingMemory(self._segments[shard].open(), self._sizes)
            self._writers[shard] = RingWriter(memory, self._sizes, self._ring)
        return self._writers[shard]
