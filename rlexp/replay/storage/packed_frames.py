"""PackedFrames: memory of frames that are LZ4-compressed, a block of consecutive ones at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import lz4.block
import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.storage.frame_pool import FRAMES, PACKED, SIZES
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, LazyArray

PACKED_BLOCK = 8
"""Frames compressed together. Of Pong's, one alone takes 253 bytes, of 4 together each takes 130, of 8 108 and of 16
97; the 7 frames of a row of two stacks are in 1.75 blocks of 8, which take 5 µs to unpack, or in 1.4 of 16, 9 µs."""
BYTES_BESIDE = 33 + 8
"""Bytes that Python adds to each block: the header of a ``bytes`` object, and the pointer to it."""


class PackedFrames:
    """Frames LZ4-compressed, PACKED_BLOCK of them together; nothing is lost."""

    block_size = PACKED_BLOCK

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._form: Array = np.empty((0, *shape), dtype)
        self._frame_bytes = math.prod(shape) * dtype.itemsize
        self._blocks: list[bytes] = []
        self._packed_bytes = 0

    @property
    def nbytes(self) -> int:
        return self._packed_bytes + BYTES_BESIDE * len(self._blocks)

    def grow(self, num_blocks: int) -> None:
        self._blocks += [b""] * (num_blocks - len(self._blocks))

    def write(self, blocks: Array, frames: Array) -> None:
        starts = range(0, len(frames), PACKED_BLOCK)
        for block, start in zip(blocks.tolist(), starts, strict=True):
            self._put(block, lz4.block.compress(frames[start : start + PACKED_BLOCK], store_size=False))

    def read(self, ids: Array, out: Array) -> None:
        target, size = out.reshape(-1).view(np.uint8).data, self._frame_bytes
        unpacked, block = memoryview(b""), -1
        for run_block, first, length, place in _runs(ids):
            if run_block != block:
                block = run_block
                unpacked = memoryview(lz4.block.decompress(self._blocks[block], uncompressed_size=PACKED_BLOCK * size))
            target[place * size : (place + length) * size] = unpacked[first * size : (first + length) * size]

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        sizes = np.array([len(self._blocks[block]) for block in blocks.tolist()], np.int64)
        ends = np.cumsum(sizes)

        def read(start: int, stop: int) -> Array:
            if start == stop:
                return np.empty(0, np.uint8)
            first, last = ends.searchsorted([start, stop - 1], side="right").tolist()
            joined = b"".join([self._blocks[block] for block in blocks[first : last + 1].tolist()])
            skipped = start - int(ends[first] - sizes[first])
            return np.frombuffer(joined, np.uint8)[skipped : skipped + stop - start]

        packed = LazyArray((int(sizes.sum()),), np.dtype(np.uint8), read)
        return {PACKED: packed, SIZES: sizes, FRAMES: self._form}

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        if PACKED not in state or SIZES not in state:
            raise CheckpointError("a replay state without compression does not fit compressed replay")
        packed, sizes = state[PACKED], state[SIZES]
        if len(sizes) != num_blocks or sizes.min(initial=1) < 1 or sizes.sum() != len(packed):
            raise CheckpointError(f"a replay state should hold {num_blocks} blocks of frames, but holds others")
        ends = np.cumsum(sizes).tolist()
        for block, (end, size) in enumerate(zip(ends, sizes.tolist(), strict=True)):
            self._put(block, packed[end - size : end].tobytes())

    def _put(self, block: int, packed: bytes) -> None:
        self._packed_bytes += len(packed) - len(self._blocks[block])
        self._blocks[block] = packed


def _runs(ids: Array) -> Iterator[tuple[int, int, int, int]]:
    """Yield block, first frame in it, length and place in ``ids`` of each run of a block's neighbours, by block."""
    blocks, offsets = np.divmod(ids, PACKED_BLOCK)
    breaks = (np.diff(ids) != 1) | (blocks[1:] != blocks[:-1])
    places = np.concatenate([[0], breaks.nonzero()[0] + 1]) if len(ids) else np.empty(0, np.intp)
    lengths = np.diff(places, append=len(ids))
    order = blocks[places].argsort(kind="stable")
    places = places[order]
    yield from zip(
        blocks[places].tolist(), offsets[places].tolist(), lengths[order].tolist(), places.tolist(), strict=True
    )
