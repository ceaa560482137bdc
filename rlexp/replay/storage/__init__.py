"""The storages of replayed rows, by name; a shard's config chooses one.

A new storage is a class with the methods of ``Storage`` in a file of its own, and its line in STORAGES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from rlexp.replay.storage.frame_pool import PackedFrames
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import Array, FrameRows, SampleBatch
from rlexp.states import AnyArray


class Storage(Protocol):
    """Rows in numbered slots; a :class:`~rlexp.replay.rows.RowRing` owns it and decides the slot of each row."""

    @property
    def nbytes(self) -> int:
        """Bytes once every slot is used; 0 before the first write."""

    def write(self, start: int, rows: SampleBatch | FrameRows, /) -> None:
        """Copy ``rows [B]`` into slots ``start`` to ``start + B - 1``, which all exist.

        The first ones decide columns, dtypes and shapes; raises ValueError, with nothing written, for others.
        """

    def read(self, slots: Array) -> SampleBatch:
        """Return copies, with whole observations, of the rows in ``slots [B]`` (int64, all written before)."""

    def state(self, count: int) -> Mapping[str, AnyArray]:
        """Return the content of the first ``count`` slots, which are all that were written.

        Read it before anything changes.
        """

    def load(self, state: Mapping[str, Array], count: int) -> None:
        """Replace all rows by the result of ``state(count)``; CheckpointError if it is from another storage."""

    def close(self) -> None:
        """Free the memory; idempotent."""


STORAGES: Final[Mapping[str, Callable[[int], Storage]]] = {
    "frames": FrameStorage,
    "compressed_frames": partial(FrameStorage, make_memory=PackedFrames),
}
"""Functions that make a storage of so many slots, by name; no memory is taken before the first write."""
