"""The worker's end of shared memory: writes rows straight into where the learner's process samples them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from rlexp.replay.shared.rings import RingMemory, RingSizes, fence
from rlexp.replay.shared.segment import SegmentHandle
from rlexp.sample_batch import TD_ERRORS, Array, Column, SampleBatch, WrittenRows

FULL_TIMEOUT_S = 60.0
"""Bound of a writer's wait for room. The learner's process takes rows in several times a second."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5e-5, 5e-3
"""Between two looks for room; each pause is twice the one before."""


class RingWriter:
    """Writes into one ring, of which it is the only writer; it goes on where the one before it stopped."""

    def __init__(self, memory: RingMemory, sizes: RingSizes, ring: int, full_timeout_s: float = FULL_TIMEOUT_S) -> None:
        self.num_written = int(memory.written[ring])
        """Rows written into this ring, ever."""
        self.waited_s = 0.0
        """Seconds spent waiting for room."""
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
        self.waited_s += time.monotonic() - started
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
        """Write ``batch [B]`` and return where it lies; raises TimeoutError when there is no room for too long."""
        shard = int(self._rng.integers(len(self._segments)))
        # By name, because the columns lie in the order in which they are given, and all writers must agree on it.
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
