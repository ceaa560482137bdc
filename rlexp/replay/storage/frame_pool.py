"""FramePool: frames that rows share, each kept while a row refers to it; and both kinds of memory for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, LazyArray

PACKED, SIZES, FRAMES = "frames.packed", "frames.sizes", "frames"
"""Parts of a state: joined blocks and the bytes of each, and plain frames (none if blocks are packed)."""


class FrameMemory(Protocol):
    """Blocks of ``block_size`` frames each; frame ``id`` is in block ``id // block_size``. A FramePool owns it."""

    block_size: int

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""

    def grow(self, num_blocks: int) -> None:
        """Make room for ``num_blocks`` in all, which is at least the present number."""

    def write(self, blocks: Array, frames: Array) -> None:
        """Copy ``frames [F, ...]`` into ``blocks [N]``, in order; only the last block may stay part empty."""

    def read(self, ids: Array, out: Array) -> None:
        """Copy the frames ``ids [F]`` to ``out [F, ...]``."""

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        """Return the content of ``blocks [N]``, to be read before anything changes."""

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        """Fill the first ``num_blocks`` with what ``state`` returned; CheckpointError for another content."""


class PlainFrames:
    """Uncompressed frames, each in a block of its own."""

    block_size = 1

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._frames: Array = np.empty((0, *shape), dtype)

    @property
    def nbytes(self) -> int:
        return self._frames.nbytes

    def grow(self, num_blocks: int) -> None:
        # The C library moves so much memory by its page table; nothing else refers to the array.
        self._frames.resize((num_blocks, *self._frames.shape[1:]), refcheck=False)

    def write(self, blocks: Array, frames: Array) -> None:
        self._frames[blocks] = frames

    def read(self, ids: Array, out: Array) -> None:
        # "clip", as NumPy buffers its output if it may have to raise; the frames are known to exist.
        self._frames.take(ids, axis=0, out=out, mode="clip")

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        shape = (len(blocks), *self._frames.shape[1:])
        return {FRAMES: LazyArray(shape, self._frames.dtype, lambda start, stop: self._frames[blocks[start:stop]])}

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        frames = state[FRAMES]
        if PACKED in state or len(frames) != num_blocks:
            raise CheckpointError(f"a replay state should hold {num_blocks} plain frames, but holds {len(frames)}")
        self._frames[:num_blocks] = frames


PACKED_BLOCK = 8
"""Frames compressed together. A Pong frame takes 253 bytes alone, 130 in blocks of 4, 108 of 8, 97 of 16.
The 7 frames of a row of two stacks are in 1.75 blocks of 8, which take 5 µs to unpack, or in 1.4 of 16, 9 µs."""
BYTES_BESIDE = 33 + 8
"""Bytes that Python adds to each block: the header of a ``bytes`` object, and the pointer to it."""


class PackedFrames:
    """LZ4-compressed frames, PACKED_BLOCK of them together; lossless."""

    block_size = PACKED_BLOCK

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        import lz4.block  # imported here, so that all other replay needs NumPy only

        self._lz4 = lz4.block
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
            self._put(block, self._lz4.compress(frames[start : start + PACKED_BLOCK], store_size=False))

    def read(self, ids: Array, out: Array) -> None:
        target, size = out.reshape(-1).view(np.uint8).data, self._frame_bytes
        unpacked, block = memoryview(b""), -1
        for run_block, first, length, place in _runs(ids):
            if run_block != block:
                block = run_block
                unpacked = memoryview(self._lz4.decompress(self._blocks[block], uncompressed_size=PACKED_BLOCK * size))
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
    """Yield block, first frame in it, length and place in ``ids`` of each range of a block's neighbours, by block."""
    blocks, offsets = np.divmod(ids, PACKED_BLOCK)
    breaks = (np.diff(ids) != 1) | (blocks[1:] != blocks[:-1])
    places = np.concatenate([[0], breaks.nonzero()[0] + 1]) if len(ids) else np.empty(0, np.intp)
    lengths = np.diff(places, append=len(ids))
    order = blocks[places].argsort(kind="stable")
    places = places[order]
    yield from zip(
        blocks[places].tolist(), offsets[places].tolist(), lengths[order].tolist(), places.tolist(), strict=True
    )


NO_FRAME = -1
"""The number of a place without a frame."""
REMEMBERED_BITS = 16
"""Bits of the 2¹⁶ frames whose numbers are remembered. Frames that come again are the newest of each env, far fewer."""
GROWTH = 1 / 32
"""Least share by which a full pool grows: growing is rare, and little memory is unused."""
COUNTED_ROWS = 1 << 14
"""Rows of a state whose frames are counted at a time."""


class FramePool:
    """Owns the memory of frames, in blocks that are reused when no row refers to any of their frames.

    A frame's id is its place in the pool. A repeated frame is recognised by its global number while it is held and
    remembered: the last frames of a fragment are the first ones of its env's next. A forgotten one is stored
    twice.
    """

    def __init__(self, memory: FrameMemory) -> None:
        """Store frames in ``memory``, which is empty."""
        self._memory = memory
        self._size = memory.block_size
        self._references: Array = np.empty(0, np.int32)
        self._numbers: Array = np.empty(0, np.int64)
        self._free: list[int] = []
        self._remembered: Array = np.zeros(1 << REMEMBERED_BITS, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of the frames and of their index."""
        return self._memory.nbytes + self._references.nbytes + self._numbers.nbytes

    def add(self, frames: Array, numbers: Array, counts: Array) -> Array:
        """Store ``frames [F, ...]`` with ``numbers [F]`` and ``counts [F]`` references; return their ids ``[F]``.

        Frames without references are not stored, and get no id.
        """
        wanted = counts > 0
        ids: Array = self._remembered[_places(numbers)]
        new = wanted if not len(self._numbers) else wanted & (self._numbers[ids] != numbers)
        if new.any():
            ids[new] = self._store(frames[new], numbers[new])
        np.add.at(self._references, ids[wanted] // self._size, counts[wanted].astype(np.int32))
        return ids

    def release(self, ids: Array) -> None:
        """Remove one reference for each of ``ids [N]``, which may repeat frames."""
        blocks = ids // self._size
        np.subtract.at(self._references, blocks, np.int32(1))
        free = np.unique(blocks[self._references[blocks] == 0])
        self._numbers.reshape(-1, self._size)[free] = NO_FRAME
        self._free += free.tolist()

    def read(self, ids: Array, out: Array) -> None:
        """Copy the frames ``ids [F]`` to ``out [F, ...]``."""
        self._memory.read(ids, out)

    def state(self) -> tuple[dict[str, AnyArray], Callable[[Array], Array]]:
        """Return the state of the referenced frames, and the function to their ids in a pool that has loaded it.

        Use both before anything changes.
        """
        used = self._references > 0
        places = np.cumsum(used, dtype=np.int32) - np.int32(1)

        def loaded(ids: Array) -> Array:
            renumbered: Array = places[ids // self._size] * self._size + ids % self._size
            return renumbered.astype(np.int32)

        return self._memory.state(used.nonzero()[0]), loaded

    def load(self, state: Mapping[str, Array], columns: Sequence[Array]) -> None:
        """Restore what ``state`` returned into an empty pool; CheckpointError for another content.

        Each of ``columns [N, K]`` has ids that rows refer to.
        """
        least = min(int(ids.min(initial=0)) for ids in columns)
        if least < 0:
            raise CheckpointError(f"a replay state has no frames of number {least}")
        num_blocks = max(int(ids.max(initial=-1)) for ids in columns) // self._size + 1
        self._grow(num_blocks)
        self._memory.load(state, num_blocks)
        self._free = []
        for ids in columns:
            for start in range(0, len(ids), COUNTED_ROWS):
                np.add.at(self._references, ids[start : start + COUNTED_ROWS] // self._size, np.int32(1))

    def _store(self, frames: Array, numbers: Array) -> Array:
        num_blocks = -(-len(frames) // self._size)
        if num_blocks > len(self._free):
            self._grow(max(num_blocks - len(self._free), int(len(self._references) * GROWTH)))
        blocks = np.array(self._free[-num_blocks:], np.int32)
        del self._free[-num_blocks:]
        self._memory.write(blocks, frames)
        ids: Array = (blocks[:, None] * self._size + np.arange(self._size, dtype=np.int32)).reshape(-1)[: len(frames)]
        self._numbers[ids] = numbers
        self._remembered[_places(numbers)] = ids
        return ids

    def _grow(self, more: int) -> None:
        before = len(self._references)
        now = before + more
        self._memory.grow(now)
        self._references.resize(now, refcheck=False)
        self._numbers.resize(now * self._size, refcheck=False)
        self._numbers[before * self._size :] = NO_FRAME
        self._free = [*range(before, now), *self._free]


def _places(numbers: Array) -> Array:
    """Return the places of remembered frames, spread evenly by multiplication with 2⁶⁴ / golden ratio (Knuth, 6.4)."""
    places: Array = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - REMEMBERED_BITS)
    return places
