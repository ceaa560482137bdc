"""Rows: what a sampler needs of a container of rows, in its own memory or shared with workers.

RowRing has them in one storage, in which the newest overwrite the oldest; ``shared_rows`` has the other implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.storage import Storage
from rlexp.sample_batch import KEYS, TD_ERRORS, Array, FrameRows, SampleBatch, SentRows, WrittenRows

STORAGE_PREFIX = "storage."
"""Prefix of the columns' names in a state."""


def columns_in(state: Mapping[str, Any], capacity: int) -> dict[str, Any]:
    """Return the columns in a state of rows by name; raises CheckpointError for another capacity."""
    if state["capacity"] != capacity:
        raise CheckpointError(f"a replay state of capacity {state['capacity']} does not fit into {capacity}")
    return {name.removeprefix(STORAGE_PREFIX): state[name] for name in state if name.startswith(STORAGE_PREFIX)}


class SlotRange(NamedTuple):
    """Consecutive slots that one call filled."""

    start: int
    """The first slot."""
    rows: slice
    """The batch's rows in these slots."""


class Rows(Protocol):
    """The newest rows. Each has a key that no other row ever gets, and a slot that another row may get later.

    A sampler owns them. Adding is three calls: :meth:`unpack`, :meth:`retire`, :meth:`write`.
    """

    capacity: int
    """Most rows that are kept."""
    num_slots: int
    """Slots for rows."""

    @property
    def num_added(self) -> int:
        """Rows ever added."""

    @property
    def size(self) -> int:
        """Rows held now."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rows once every slot is used; 0 before the first ones."""

    def unpack(self, sent: SentRows, /) -> tuple[SentRows, Array | None]:
        """Return the part to store, and its first TD errors ``[B]`` if there are any; changes nothing.

        Raises ValueError if the columns differ from the first rows'.
        """

    def retire(self, batch: SentRows, /) -> list[range]:
        """Remove rows for which an unpacked ``batch`` leaves no room; return their slots that stay empty."""

    def write(self, batch: SentRows, /) -> list[SlotRange]:
        """Add the rows of an unpacked ``batch``; return the ranges of slots of the rows that are kept."""

    def read(self, slots: Array) -> SampleBatch:
        """Return copies of the rows in ``slots [B]``, with their KEYS ``[B]`` (int64)."""

    def nth(self, ordinals: Array) -> Array:
        """Return the slots ``[B]`` of the rows held, counted from 0 to size - 1 in the order of :meth:`state`."""

    def locate(self, keys: Array) -> tuple[Array, Array]:
        """Return the slots ``[B]`` of ``keys [B]``, and whether each key's row is still there ``[B]`` (bool)."""

    def state(self) -> dict[str, Any]:
        """Return the rows held, to be read before anything changes, and the numbers that identify them.

        The rows are arrays, views or stored ones (see :class:`~rlexp.states.LazyArray`).
        """

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; raises CheckpointError when it does not fit."""

    def keys(self) -> Array:
        """Return the keys ``[size]`` of the rows held, oldest first; with several writers, each one's oldest first."""

    def clear(self) -> None:
        """Forget every row; later rows get new keys."""

    def close(self) -> None:
        """Free the memory; idempotent."""


class RowRing:
    """:class:`Rows` in one storage; their keys are their insertion numbers.

    Row ``key`` is in slot ``key % capacity`` until row ``key + capacity`` overwrites it. The key
    follows from the slot and the next row's key, and is not stored. After :meth:`clear` keys go on at
    the next multiple of the capacity, so that no key is given twice and the first row is in slot 0 again.
    """

    def __init__(self, capacity: int, storage: Storage) -> None:
        """Keep ``capacity`` rows in ``storage``, which has that many slots; raises ValueError below 1."""
        if capacity < 1:
            raise ValueError(f"a buffer needs room for at least one row, not {capacity}")
        self.capacity = self.num_slots = capacity
        self.num_added = 0
        self.next_key = 0
        self._storage = storage

    @property
    def size(self) -> int:
        """Rows held now, in slots 0 to size - 1."""
        return min(self.num_added, self.capacity)

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes

    def unpack(self, sent: SentRows, /) -> tuple[SampleBatch | FrameRows, Array | None]:
        assert not isinstance(sent, WrittenRows)
        rows = sent.rows if isinstance(sent, FrameRows) else sent
        if TD_ERRORS not in rows:
            return sent, None
        stored = SampleBatch({name: column for name, column in rows.columns.items() if name != TD_ERRORS})
        return replace(sent, rows=stored) if isinstance(sent, FrameRows) else stored, rows[TD_ERRORS]

    def retire(self, batch: SentRows, /) -> list[range]:
        """Do nothing: new rows overwrite the oldest, and no slot stays empty."""
        return []

    def write(self, batch: SentRows, /) -> list[SlotRange]:
        """Add the rows of ``batch [B]``; return their ranges of slots, at most two.

        If a batch is larger than the capacity, only its last rows are written, though all are counted. Raises
        ValueError, with nothing written, if the columns differ from the first batch's.
        """
        assert not isinstance(batch, WrittenRows)
        count = len(batch)
        first = max(count - self.capacity, 0)
        start = (self.num_added + first) % self.capacity
        turn = min(first + self.capacity - start, count)
        runs = [SlotRange(start, slice(first, turn)), SlotRange(0, slice(turn, count))]
        runs = [run for run in runs if run.rows.start < run.rows.stop]
        for run in runs:
            self._storage.write(run.start, batch.slice(run.rows.start, run.rows.stop))
        self.num_added += count
        self.next_key += count
        return runs

    def read(self, slots: Array) -> SampleBatch:
        newest = self.next_key - 1
        keys = newest - (newest - slots) % self.capacity
        return self._storage.read(slots).with_columns(**{KEYS: keys})

    def nth(self, ordinals: Array) -> Array:
        return ordinals

    def locate(self, keys: Array) -> tuple[Array, Array]:
        held = (keys >= self.next_key - self.size) & (keys < self.next_key)
        return keys % self.capacity, held

    def state(self) -> dict[str, Any]:
        rows = {STORAGE_PREFIX + name: array for name, array in self._storage.state(self.size).items()}
        return {"capacity": self.capacity, "num_added": self.num_added, **rows}

    def load(self, state: Mapping[str, Any]) -> None:
        rows = columns_in(state, self.capacity)
        num_added = int(state["num_added"])
        first_key = self.next_key - self.num_added
        self._storage.load(rows, min(num_added, self.capacity))
        self.num_added = num_added
        self.next_key = first_key + num_added

    def keys(self) -> Array:
        return np.arange(self.next_key - self.size, self.next_key)

    def clear(self) -> None:
        self.next_key = -(-self.next_key // self.capacity) * self.capacity
        self.num_added = 0

    def close(self) -> None:
        self._storage.close()
