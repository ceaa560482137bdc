"""Storage: what a replay buffer asks of the memory that holds its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlexp.sample_batch import Array, SampleBatch


class Storage(Protocol):
    """Rows in numbered slots; a :class:`~rlexp.replay.ring.RowRing` owns it and decides which row goes where.

    Runs are written in the order of insertion, so that a storage may keep what neighbouring rows
    share (frames, say) only once. How rows are kept is the storage's own affair: compressed, in
    shared memory, or plainly.
    """

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take once every slot is used; 0 before the first write."""
        ...

    def write(self, start: int, batch: SampleBatch) -> None:
        """Copy the rows of ``batch [B]`` into slots ``start`` to ``start + B - 1``, which all exist.

        The first batch decides columns, dtypes and shapes; raises ValueError, with nothing
        written, for a batch that differs.
        """
        ...

    def read(self, slots: Array) -> SampleBatch:
        """Return copies of the rows in ``slots [B]`` (int64, all written before), in their order.

        The caller owns them, for as long as it likes. Where they are large, a storage may use their
        memory again, but not before the last array is gone that shares it.
        """
        ...

    def state(self, count: int) -> dict[str, Array]:
        """Return copies of what the first ``count`` slots hold, in whatever form :meth:`load` understands."""
        ...

    def load(self, state: Mapping[str, Array], count: int) -> None:
        """Forget everything and take over what ``state(count)`` returned; CheckpointError when it is something else."""
        ...

    def close(self) -> None:
        """Give the memory back; the second call does nothing."""
        ...
