"""Rows: what a sampler needs of the object that keeps its rows, in its own memory or shared with the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from rlexp.sample_batch import Array, SampleBatch, SentRows

STORAGE_PREFIX = "storage."
"""Stands before the names of the columns in a state."""


class SlotRange(NamedTuple):
    """Neighbouring slots that one call filled."""

    start: int
    """The first slot."""
    rows: slice
    """The batch's rows that went there."""


class Rows(Protocol):
    """The newest rows, each with a key, its own for ever, and in a slot, which another row may have later.

    A sampler owns them. Adding is three calls: :meth:`unpack`, :meth:`retire`, :meth:`write`.
    """

    capacity: int
    """Rows kept at most."""
    num_slots: int
    """Slots for rows."""

    @property
    def num_added(self) -> int:
        """Rows ever added."""
        ...

    @property
    def size(self) -> int:
        """Rows held now."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the rows once every slot is used; 0 before the first ones."""
        ...

    def unpack(self, sent: SentRows, /) -> tuple[SentRows, Array | None]:
        """Return what is to be stored, and its first TD errors ``[B]`` if it brings any; changes nothing.

        Raises ValueError for columns that are not those of the first rows.
        """
        ...

    def retire(self, batch: SentRows, /) -> list[range]:
        """Give up rows that an unpacked ``batch`` leaves no room for; return those of their slots that stay empty."""
        ...

    def write(self, batch: SentRows, /) -> list[SlotRange]:
        """Add the rows of an unpacked ``batch``; return the runs of slots of those that are kept."""
        ...

    def read(self, slots: Array) -> SampleBatch:
        """Return copies of the rows in ``slots [B]``, with their KEYS ``[B]`` (int64)."""
        ...

    def nth(self, ordinals: Array) -> Array:
        """Return the slots ``[B]`` of the rows held, counted from 0 to size - 1 in the order of :meth:`state`."""
        ...

    def locate(self, keys: Array) -> tuple[Array, Array]:
        """Return the slots ``[B]`` of ``keys [B]``, and whether each key's row is still there ``[B]`` (bool)."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the rows held, to be read before anything changes, and the numbers that say which they are.

        The rows are arrays, views or stored ones (see :class:`~rlexp.states.LazyArray`).
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; raises CheckpointError when it does not fit."""
        ...

    def keys(self) -> Array:
        """Return the keys ``[size]`` of the rows held, oldest first; with several writers, each one's oldest first."""
        ...

    def clear(self) -> None:
        """Forget every row; the keys of later rows are new ones."""
        ...

    def close(self) -> None:
        """Give the memory back; the second call does nothing."""
        ...
