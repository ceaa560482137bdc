"""Replay in memory that workers share with the learner's process: they write, it samples in place, without locks.

::

    worker 0 ──▶ ring 0 ┐                       ┌▶ sample
    worker 1 ──▶ ring 1 ├ a segment for a shard ┤
    worker 2 ──▶ ring 2 ┘                       └▶ update_priorities (a sum tree of the reader's own)

RingMemory is the segment of a shard. RingWriter is the worker's end, and SharedRowWriter deals a worker's batches to
the shards. SharedRows is the learner's end, which keeps, samples and retires rows; SharedReplay makes all. Beside the
segment, only a few numbers are sent between the processes: which rows were written (``WrittenRows``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.processes.shared_memory import CACHE_LINE, Segment, SegmentHandle, fence
from rlexp.replay.rows import STORAGE_PREFIX, SlotRange, columns_in
from rlexp.replay.storage.array import ArrayStorage, check_lengths
from rlexp.replay.storage.frame_pool import FRAMES
from rlexp.sample_batch import KEYS, TD_ERRORS, Array, Column, SampleBatch, SentRows, WrittenRows
from rlexp.states import LazyArray

FULL_TIMEOUT_S = 60.0
"""Most seconds that a writer waits for room. The learner's process takes rows several times a second."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5e-5, 5e-3
"""Seconds between two checks for room; each pause is twice the previous one."""


@dataclass(frozen=True)
class RingSizes:
    """The division of a shard's memory: a ring for each writer; equal in every process."""

    capacity: int
    """Rows kept in all rings together."""
    num_rings: int
    headroom: int
    """Rows that a writer may be ahead of the reader: the most that it writes at once without waiting."""

    def __post_init__(self) -> None:
        if min(self.capacity, self.num_rings, self.headroom) < 1:
            raise ValueError(f"rings need room for at least one row: {self}")

    @property
    def slots_per_ring(self) -> int:
        """Slots of each ring: its share of the kept rows, and the headroom."""
        return -(-self.capacity // self.num_rings) + self.headroom

    @property
    def num_slots(self) -> int:
        """Slots of all rings together."""
        return self.num_rings * self.slots_per_ring

    def shares(self) -> Array:
        """Return the number of kept rows of each ring ``[num_rings]`` (int64), ``capacity`` together."""
        shares: Array = (self.capacity + np.arange(self.num_rings)) // self.num_rings
        return shares


class RingMemory:
    """The rings of one shard: ``slots_per_ring`` slots each, one ring after another.

    Row ``number`` of a ring, counted from 0 for ever, is in its slot ``number % slots_per_ring``. A writer writes only
    rows from ``written`` to before ``released + slots_per_ring``; the reader reads only rows from ``released`` to
    before ``written``. So no row is written while it may be read, and no lock is needed: one process moves each
    counter, after it has finished with the rows. If a writer dies within a row, ``written`` does not include that row.
    """

    def __init__(self, segment: Segment, sizes: RingSizes) -> None:
        """Lay out the segment's first arrays; the columns' follow when a batch shows their form."""
        counters = segment.array((2, sizes.num_rings, CACHE_LINE // 8), np.int64)
        self.written: Array = counters[0, :, 0]
        """Number of rows that each writer has completed ``[num_rings]``."""
        self.released: Array = counters[1, :, 0]
        """Number of rows of each ring that are not read any more ``[num_rings]``."""
        self.td_errors = segment.array((sizes.num_slots,), np.float32)
        """The first TD errors, read once; apart from the columns, and never touched if there are none."""
        self.storage = ArrayStorage(sizes.num_slots, segment.array)

    def close(self) -> None:
        """Free the memory, with the counters, as each mapping keeps a descriptor open; idempotent."""
        self.storage.close()
        self.td_errors = np.empty(0, np.float32)
        self.written = self.released = np.empty(0, np.int64)


class RingWriter:
    """Writes into one ring, as its only writer; it continues where its predecessor stopped."""

    def __init__(self, memory: RingMemory, sizes: RingSizes, ring: int, full_timeout_s: float = FULL_TIMEOUT_S) -> None:
        self.num_written = int(memory.written[ring])
        """Number of rows ever written into this ring."""
        self._memory = memory
        self._ring = ring
        self._slots = sizes.slots_per_ring
        self._full_timeout_s = full_timeout_s

    def write(self, batch: SampleBatch, td_errors: Array | None) -> int:
        """Write the rows of ``batch [B]`` and their ``td_errors [B]``; return the first one's number.

        Waits while the ring is full; TimeoutError if no row is released in time. The rows completed before that stay. A
        batch larger than the ring is written in parts.
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
        """Write ``batch [B]`` and return its place; raises TimeoutError if there is no room for too long."""
        shard = int(self._rng.integers(len(self._segments)))
        # By name: the columns are stored in the given order, which must be equal for all writers.
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


class SharedRows:
    """:class:`~rlexp.replay.rows.Rows` over the rings of all workers, of which it is the only reader.

    Each ring keeps its share of the capacity. A row's key is made of its number and its ring; its slot is where it was
    written. Rows count when a worker's message about them arrives, in the order of its ring. Rows of an earlier message
    that arrives later are known already.
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
        # For each ring, the first row held, and the number after the last.
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
        """Return rows written since the last added ones, for a reader that gets no messages."""
        ends = self._memory.written.tolist()
        return [
            WrittenRows(0, ring, first, end - first, columns, has_td_errors)
            for ring, (first, end) in enumerate(zip(self._end.tolist(), ends, strict=True))
            if end > first
        ]

    def unpack(self, sent: SentRows, /) -> tuple[WrittenRows, Array | None]:
        """Return the rows up to the last one ``sent`` that are not held yet, and their TD errors ``[B]``, if any.

        Raises ValueError if columns differ from the first rows', and for rows that were not written.
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
        # In its ring, each slot has the newest row that can be there.
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
        """Return the rows held, as :class:`~rlexp.replay.rows.RowRing` does; workers may write on meanwhile.

        A full ring releases rows although others are not full; then ``num_added`` is the number of rows held.
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
        columns = dict(sorted(columns_in(state, self.capacity).items()))
        if self._memory.written.any():
            raise CheckpointError("a replay state can be loaded into shared memory only before workers write there")
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
        """Return a column ``[num_slots, ...]`` of the rows held, from ordinal ``start`` to before ``stop``."""
        held: Array = column[self.nth(np.arange(start, stop))]
        return held

    def _deal(self, batch: SampleBatch) -> None:
        """Write rows ``[B]``, at most the capacity, into the rings by their shares."""
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
        """Yield the first slot of each range, and its row numbers, for rows ``first`` to ``stop - 1``."""
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
        """Take no memory yet; raises ResourceError if the system has no memory to share."""
        self._segments = [Segment.create() for _ in range(num_shards)]
        self._sizes = sizes

    def rows(self, shard: int) -> SharedRows:
        """Return the rows of a shard; call it once, as they have one reader."""
        return SharedRows(self._segments[shard], self._sizes)

    def writer(self, ring: int, seed: int) -> SharedRowWriter:
        """Return the writer of worker ``ring``, to be sent to its process; ``seed`` deals batches to shards."""
        return SharedRowWriter([segment.handle for segment in self._segments], self._sizes, ring, seed)
