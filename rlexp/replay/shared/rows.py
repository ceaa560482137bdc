"""SharedRows: the learner's end of shared memory, where what workers have written is kept, sampled and retired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.processes.shared_memory import Segment, fence
from rlexp.replay.rows import STORAGE_PREFIX, SlotRange
from rlexp.replay.shared.rings import RingMemory, RingSizes, SharedRowWriter
from rlexp.replay.storage.array import check_lengths
from rlexp.replay.storage.frame_memory import FRAMES
from rlexp.sample_batch import KEYS, Array, Column, SampleBatch, SentRows, WrittenRows
from rlexp.states import LazyArray


class SharedRows:
    """:class:`~rlexp.replay.rows.Rows` over the rings of all workers, of which it is the only reader.

    Each ring keeps its share of the capacity. A row's key is made of its number and its ring; its slot
    is the one it was written to. Rows count from when a worker's message about them arrives, in the order of
    its ring: those of an earlier message that arrives later are known already.
    """

    def __init__(self, segment: Segment, sizes: RingSizes) -> None:
        """Read the rings of a new ``segment``."""
        self.capacity = sizes.capacity
        self.num_slots = sizes.num_slots
        self._num_rings = sizes.num_rings
        self._slots = sizes.slots_per_ring
        self._shares = sizes.shares()
        self._segment = segment
        self._memory = RingMemory(segment, sizes)
        # Of each ring: the first row held, and the one behind the last.
        self._first: Array = np.zeros(self._num_rings, np.int64)
        self._end: Array = np.zeros(self._num_rings, np.int64)
        self._num_added_before = 0
        self._columns: tuple[Column, ...] = ()

    @property
    def num_added(self) -> int:
        return self._num_added_before + int(self._end.sum())

    @property
    def size(self) -> int:
        return int((self._end - self._first).sum())

    @property
    def nbytes(self) -> int:
        rows = self._memory.storage.nbytes
        return rows + self._memory.td_errors.nbytes if rows else 0

    def unread(self, columns: tuple[Column, ...], has_td_errors: bool) -> list[WrittenRows]:
        """Return the rows that were written since those last added, for a reader that gets no messages."""
        ends = self._memory.written.tolist()
        return [
            WrittenRows(0, ring, first, end - first, columns, has_td_errors)
            for ring, (first, end) in enumerate(zip(self._end.tolist(), ends, strict=True))
            if end > first
        ]

    def unpack(self, sent: SentRows, /) -> tuple[WrittenRows, Array | None]:
        """Return the rows up to the last one ``sent`` that are not held yet, and their TD errors ``[B]``, if any.

        Raises ValueError for other columns than the first rows', and for rows that were not written.
        """
        assert isinstance(sent, WrittenRows)
        if sent.columns != self._columns:
            self._memory.storage.write(0, _no_rows(sent.columns))
            self._columns = sent.columns
        written, end = int(self._memory.written[sent.ring]), sent.first + sent.count
        if end > written:
            raise ValueError(f"rows up to {end} of ring {sent.ring} were announced, but {written} were written")
        fence()
        first = int(self._end[sent.ring])
        due = replace(sent, first=first, count=max(end - first, 0))
        if not sent.has_td_errors:
            return due, None
        slots = self._slot(np.arange(due.first, due.first + due.count), sent.ring)
        return due, self._memory.td_errors.take(slots)

    def retire(self, due: SentRows, /) -> list[range]:
        assert isinstance(due, WrittenRows)
        first, end = int(self._first[due.ring]), due.first + due.count
        oldest_kept = max(first, end - int(self._shares[due.ring]))
        self._first[due.ring] = oldest_kept
        held_before = self._runs(due.ring, first, min(oldest_kept, due.first))
        return [range(start, start + numbers.stop - numbers.start) for start, numbers in held_before]

    def write(self, due: SentRows, /) -> list[SlotRange]:
        assert isinstance(due, WrittenRows)
        first, end = int(self._first[due.ring]), due.first + due.count
        fence()
        self._memory.released[due.ring] = first
        self._end[due.ring] = end
        return [
            SlotRange(start, slice(numbers.start - due.first, numbers.stop - due.first))
            for start, numbers in self._runs(due.ring, max(first, due.first), end)
        ]

    def read(self, slots: Array) -> SampleBatch:
        rings = slots // self._slots
        newest = self._end[rings] - 1
        # In its ring, each slot's row is the newest of those that can be there.
        numbers = newest - (newest - slots + rings * self._slots) % self._slots
        batch = self._memory.storage.read(slots)
        return batch.with_columns(**{KEYS: numbers * self._num_rings + rings})

    def nth(self, ordinals: Array) -> Array:
        sizes = self._end - self._first
        ends = np.cumsum(sizes)
        rings = ends.searchsorted(ordinals, side="right")
        return self._slot(self._first[rings] + ordinals - (ends - sizes)[rings], rings)

    def locate(self, keys: Array) -> tuple[Array, Array]:
        numbers, rings = np.divmod(keys, self._num_rings)
        held = (numbers >= self._first[rings]) & (numbers < self._end[rings])
        return self._slot(numbers, rings), held

    def state(self) -> dict[str, Any]:
        """Return the rows held, as :class:`~rlexp.replay.ring.RowRing` does; workers may write on meanwhile.

        A ring that is full lets rows go although others are not: then ``num_added`` is the number of rows held.
        """
        size = self.size
        rows = {
            STORAGE_PREFIX + name: LazyArray((size, *slots.shape[1:]), slots.dtype, partial(self._held, slots))
            for name, slots in (self._memory.storage.columns.items() if size else ())
        }
        return {"capacity": self.capacity, "num_added": self.num_added if size == self.capacity else size, **rows}

    def load(self, state: Mapping[str, Any]) -> None:
        """Write the rows of a state into the rings, in the workers' place, before any of them has written.

        Raises CheckpointError when it is not of this capacity, or too late.
        """
        if state["capacity"] != self.capacity:
            raise CheckpointError(f"a replay state of capacity {state['capacity']} does not fit into {self.capacity}")
        if self._memory.written.any():
            raise CheckpointError("a replay state can be loaded into shared memory only before workers write there")
        columns = {
            name.removeprefix(STORAGE_PREFIX): state[name] for name in sorted(state) if name.startswith(STORAGE_PREFIX)
        }
        num_added = int(state["num_added"])
        count = min(num_added, self.capacity)
        if FRAMES in columns:
            raise CheckpointError(
                "a replay state with frames does not fit shared memory, which holds whole observations",
                "-o config.replay_storage=auto",
            )
        check_lengths(columns, count)
        if count:
            self._deal(SampleBatch(columns))
        self._num_added_before = num_added - count

    def keys(self) -> Array:
        held = zip(self._first.tolist(), self._end.tolist(), strict=True)
        numbers = [np.arange(first, end) * self._num_rings + ring for ring, (first, end) in enumerate(held)]
        keys: Array = np.sort(np.concatenate(numbers))
        return keys

    def clear(self) -> None:
        self._first[:] = self._end
        fence()
        self._memory.released[:] = self._end

    def close(self) -> None:
        self._memory.close()
        self._segment.close()

    def _held(self, column: Array, start: int, stop: int) -> Array:
        """Return what a column ``[num_slots, ...]`` has of the rows held, from ordinal ``start`` to before ``stop``."""
        held: Array = column[self.nth(np.arange(start, stop))]
        return held

    def _deal(self, batch: SampleBatch) -> None:
        """Write rows ``[B]``, no more than the capacity, into the rings by their shares."""
        stops = (len(batch) * np.cumsum(self._shares) // self.capacity).tolist()
        for ring, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
            self._memory.storage.write(ring * self._slots, batch.slice(start, stop))
            self._end[ring] = stop - start
        fence()
        self._memory.written[:] = self._end

    def _slot(self, numbers: Array, rings: Array | int) -> Array:
        slots: Array = numbers % self._slots + rings * self._slots
        return slots

    def _runs(self, ring: int, first: int, stop: int) -> Iterator[tuple[int, range]]:
        """Yield the slot that a run begins at, and the numbers of its rows, for rows ``first`` to ``stop - 1``."""
        while first < stop:
            start = first % self._slots
            turn = min(stop, first + self._slots - start)
            yield ring * self._slots + start, range(first, turn)
            first = turn


def _no_rows(columns: tuple[Column, ...]) -> SampleBatch:
    return SampleBatch({name: np.empty((0, *shape), dtype) for name, dtype, shape in columns})


class SharedReplay:
    """One segment for each shard, with a ring for each worker; the agent makes it in the learner's process."""

    def __init__(self, num_shards: int, sizes: RingSizes) -> None:
        """Take no memory yet; raises ResourceError where the system has none to share."""
        self._segments = [Segment.create() for _ in range(num_shards)]
        self._sizes = sizes

    def rows(self, shard: int) -> SharedRows:
        """Return the rows of a shard, once: they have one reader."""
        return SharedRows(self._segments[shard], self._sizes)

    def writer(self, ring: int, seed: int) -> SharedRowWriter:
        """Return what worker ``ring`` writes with, to be sent to its process; ``seed`` deals batches to shards."""
        return SharedRowWriter([segment.handle for segment in self._segments], self._sizes, ring, seed)
