"""CompressedStorage: large observations LZ4-compressed, row by row; for images, which would fill the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import lz4.block
import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.storage.array import ArrayStorage, row_bytes
from rlexp.replay.storage.lent import LentArrays
from rlexp.sample_batch import NEW_OBS, OBS, Array, SampleBatch

LEAST_ROW_BYTES = 1024
"""Rows from this size on are compressed. A smaller one would save little and take as long to unpack as to copy."""
BYTES_BESIDE = 33 + 8
"""Bytes that Python adds to each compressed row: the header of a ``bytes`` object, and the pointer to it."""


class CompressedStorage:
    """Keeps OBS and NEW_OBS compressed where their rows have LEAST_ROW_BYTES or more, all else in an ArrayStorage.

    Four stacked frames of Pong, 28 kB, become 0.5 kB and take 4 µs to unpack; nothing is lost.
    """

    def __init__(self, capacity: int) -> None:
        """Hold ``capacity`` rows; no memory is taken yet."""
        self._capacity = capacity
        self._plain = ArrayStorage(capacity)
        self._lent = LentArrays()
        self._compressed: dict[str, CompressedColumn] = {}
        self._is_empty = True

    @property
    def nbytes(self) -> int:
        """Bytes of all rows once every slot is used, if those to come compress as those held do; 0 before any."""
        return self._plain.nbytes + sum(column.nbytes for column in self._compressed.values())

    def write(self, start: int, batch: SampleBatch) -> None:
        """Copy ``batch [B]`` into slots ``start`` to ``start + B - 1``; ValueError when its columns are others."""
        if self._is_empty:
            self._compressed = {
                name: CompressedColumn(self._capacity, batch[name].shape[1:], batch[name].dtype)
                for name in (OBS, NEW_OBS)
                if name in batch and row_bytes(batch[name]) >= LEAST_ROW_BYTES
            }
        for name, column in self._compressed.items():
            column.check(name, batch)
        self._plain.write(start, self._plain_part(batch))
        for name, column in self._compressed.items():
            column.write(start, batch[name])
        self._is_empty = False

    def read(self, slots: Array) -> SampleBatch:
        """Return copies of the rows in ``slots [B]``."""
        unpacked = {name: column.read(slots, self._lent) for name, column in self._compressed.items()}
        return self._plain.read(slots).with_columns(**unpacked)

    def state(self, count: int) -> dict[str, Array]:
        """Return what the first ``count`` slots hold, compressed as it is; nothing when there are none."""
        state = self._plain.state(count)
        for name, column in self._compressed.items():
            state |= {f"{name}.{part}": array for part, array in column.state(count).items()}
        return state

    def load(self, state: Mapping[str, Array], count: int) -> None:
        """Forget every row and take over what ``state(count)`` returned; CheckpointError when it is something else."""
        self.close()
        names = [name for name in (OBS, NEW_OBS) if f"{name}.{PACKED}" in state]
        plain = {name: array for name, array in state.items() if name.partition(".")[0] not in names}
        if any(name in plain and row_bytes(plain[name]) >= LEAST_ROW_BYTES for name in (OBS, NEW_OBS)):
            raise CheckpointError("a replay state without compression does not fit compressed replay")
        self._plain.load(plain, count)
        self._compressed = {name: loaded_column(self._capacity, name, state, count) for name in names}
        self._is_empty = not count

    def close(self) -> None:
        """Give the memory back; the second call does nothing."""
        self._plain.close()
        self._compressed = {}
        self._lent = LentArrays()
        self._is_empty = True

    def _plain_part(self, batch: SampleBatch) -> SampleBatch:
        return SampleBatch({name: array for name, array in batch.columns.items() if name not in self._compressed})


PACKED, SIZES, SAMPLE = "packed", "sizes", "sample"
"""Parts of a column's state: the packed rows joined, each one's bytes, and an array of no rows with their form."""


class CompressedColumn:
    """Packed rows in numbered slots; a CompressedStorage owns it."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._rows: list[bytes] = [b""] * capacity
        self._shape = shape
        self._dtype = dtype
        self._row_bytes = math.prod(shape) * dtype.itemsize
        self._num_rows = 0
        self._packed_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes once every slot is used, by the mean of the rows held."""
        mean = self._packed_bytes / self._num_rows if self._num_rows else self._row_bytes
        return int(len(self._rows) * (mean + BYTES_BESIDE))

    def check(self, name: str, batch: SampleBatch) -> None:
        """Raise ValueError where the batch's column ``name`` has other rows than the storage, or is not there."""
        given = batch.columns.get(name)
        if given is None or given.shape[1:] != self._shape or given.dtype != self._dtype:
            other = "none" if given is None else f"rows of {given.dtype}{list(given.shape[1:])}"
            raise ValueError(f"column {name}: {other}, the storage holds {self._dtype}{list(self._shape)}")

    def write(self, start: int, rows: Array) -> None:
        """Pack ``rows [B, ...]`` into slots ``start`` to ``start + B - 1``."""
        packed = [lz4.block.compress(row, store_size=False) for row in np.ascontiguousarray(rows)]
        self._put(start, packed)

    def read(self, slots: Array, lent: LentArrays) -> Array:
        """Return the rows in ``slots [B]``, unpacked ``[B, ...]``, in ``lent`` memory."""
        rows, size = lent.lend((len(slots), *self._shape), self._dtype), self._row_bytes
        target = rows.reshape(-1).view(np.uint8).data
        for row, slot in enumerate(slots.tolist()):
            target[row * size : (row + 1) * size] = lz4.block.decompress(self._rows[slot], uncompressed_size=size)
        return rows

    def state(self, count: int) -> dict[str, Array]:
        """Return the parts of the first ``count`` rows; nothing when there are none."""
        if not count:
            return {}
        rows = self._rows[:count]
        return {
            PACKED: np.frombuffer(b"".join(rows), np.uint8).copy(),
            SIZES: np.array([len(row) for row in rows], np.int64),
            SAMPLE: np.empty((0, *self._shape), self._dtype),
        }

    def take_packed(self, packed: bytes, sizes: Array) -> None:
        """Fill the first slots with rows that are packed already: ``sizes [B]`` bytes each."""
        ends = np.cumsum(sizes)
        self._put(0, [packed[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)])

    def _put(self, start: int, packed: list[bytes]) -> None:
        stop = start + len(packed)
        overwritten = self._rows[start:stop]
        self._packed_bytes += sum(map(len, packed)) - sum(map(len, overwritten))
        self._num_rows += overwritten.count(b"")
        self._rows[start:stop] = packed


def loaded_column(capacity: int, name: str, state: Mapping[str, Array], count: int) -> CompressedColumn:
    """Return the column of a state; raises CheckpointError when it has not ``count`` whole rows."""
    try:
        packed, sizes, sample = (state[f"{name}.{part}"] for part in (PACKED, SIZES, SAMPLE))
    except KeyError as error:
        raise CheckpointError(f"a replay state has no {error.args[0]}") from error
    if len(sizes) != count or sizes.min(initial=1) < 1 or sizes.sum() != len(packed):
        raise CheckpointError(f"a replay state should hold {count} rows of {name}, but holds {len(sizes)}, or parts")
    column = CompressedColumn(capacity, sample.shape[1:], sample.dtype)
    column.take_packed(packed.tobytes(), sizes)
    return column
