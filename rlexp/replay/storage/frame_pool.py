"""FramePool: frames that rows share, each kept as long as a row refers to it, and the plain kind of memory for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, LazyArray

PACKED, SIZES, FRAMES = "frames.packed", "frames.sizes", "frames"
"""Parts of a state: blocks joined and the bytes of each, and frames as they are (with packed ones, none of them)."""


class FrameMemory(Protocol):
    """Blocks of ``block_size`` frames each; frame ``id`` is in block ``id // block_size``. A FramePool owns it."""

    block_size: int

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        ...

    def grow(self, num_blocks: int) -> None:
        """Make room for ``num_blocks`` in all, no fewer than there are."""
        ...

    def write(self, blocks: Array, frames: Array) -> None:
        """Copy ``frames [F, ...]`` into ``blocks [N]``, in order; only the last block may stay part empty."""
        ...

    def read(self, ids: Array, out: Array) -> None:
        """Copy the frames ``ids [F]`` to ``out [F, ...]``."""
        ...

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        """Return what is in ``blocks [N]``, to be read before anything changes."""
        ...

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        """Fill the first ``num_blocks`` with what ``state`` returned; CheckpointError when it is something else."""
        ...


class PlainFrames:
    """Frames as they are, each a block of its own."""

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
        # "clip" because NumPy buffers its output when it may have to raise; the frames are known to exist.
        self._frames.take(ids, axis=0, out=out, mode="clip")

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        shape = (len(blocks), *self._frames.shape[1:])
        return {FRAMES: LazyArray(shape, self._frames.dtype, lambda start, stop: self._frames[blocks[start:stop]])}

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        frames = state[FRAMES]
        if PACKED in state or len(frames) != num_blocks:
            raise CheckpointError(f"a replay state should hold {num_blocks} plain frames, but holds {len(frames)}")
        self._frames[:num_blocks] = frames


NO_FRAME = -1
"""The number of a place without a frame."""
REMEMBERED_BITS = 16
"""2¹⁶ frames are remembered by their numbers; those that come again are the newest of each env, which are far fewer."""
GROWTH = 1 / 32
"""Part by which a full pool grows, at least: seldom enough, and little is there in vain."""
COUNTED_ROWS = 1 << 14
"""Rows of a state whose frames are counted at a time."""


class FramePool:
    """Owns the memory of frames, in blocks that are used again when no row refers to any frame of them.

    A frame's id is its place in the pool. A frame that comes again (the last ones of a fragment are the first ones
    of its env's next one) is known by its global number, as long as it is held and was not forgotten for a newer
    one. What is forgotten is stored twice.
    """

    def __init__(self, memory: FrameMemory) -> None:
        """Keep frames in ``memory``, which is empty."""
        self._memory = memory
        self._size = memory.block_size
        self._references: Array = np.empty(0, np.int32)
        self._numbers: Array = np.empty(0, np.int64)
        self._free: list[int] = []
        self._remembered: Array = np.zeros(1 << REMEMBERED_BITS, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of the frames and of what says where they are."""
        return self._memory.nbytes + self._references.nbytes + self._numbers.nbytes

    def add(self, frames: Array, numbers: Array, counts: Array) -> Array:
        """Keep ``frames [F, ...]`` with ``numbers [F]``, referred to ``counts [F]`` times; return their ids ``[F]``.

        Frames that are not referred to are not kept, and get no id.
        """
        wanted = counts > 0
        ids: Array = self._remembered[_places(numbers)]
        new = wanted if not len(self._numbers) else wanted & (self._numbers[ids] != numbers)
        if new.any():
            ids[new] = self._store(frames[new], numbers[new])
        np.add.at(self._references, ids[wanted] // self._size, counts[wanted].astype(np.int32))
        return ids

    def release(self, ids: Array) -> None:
        """Take back one reference for each of ``ids [N]``, which may name frames again and again."""
        blocks = ids // self._size
        np.subtract.at(self._references, blocks, np.int32(1))
        free = np.unique(blocks[self._references[blocks] == 0])
        self._numbers.reshape(-1, self._size)[free] = NO_FRAME
        self._free += free.tolist()

    def read(self, ids: Array, out: Array) -> None:
        """Copy the frames ``ids [F]`` to ``out [F, ...]``."""
        self._memory.read(ids, out)

    def state(self) -> tuple[dict[str, AnyArray], Callable[[Array], Array]]:
        """Return what holds the frames that are referred to, and what their ids are in a pool that has loaded it.

        The second is a function of ids. Both are to be used before anything changes.
        """
        used = self._references > 0
        places = np.cumsum(used, dtype=np.int32) - np.int32(1)

        def loaded(ids: Array) -> Array:
            renumbered: Array = places[ids // self._size] * self._size + ids % self._size
            return renumbered.astype(np.int32)

        return self._memory.state(used.nonzero()[0]), loaded

    def load(self, state: Mapping[str, Array], columns: Sequence[Array]) -> None:
        """Restore what ``state`` returned into an empty pool; CheckpointError where it is something else.

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
    """Return where frames are remembered: spread evenly, by multiplication with 2⁶⁴ / golden ratio (Knuth, 6.4)."""
    places: Array = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - REMEMBERED_BITS)
    return places
