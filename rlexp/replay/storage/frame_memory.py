"""Memory of frames: what it is for a pool, and the kind that keeps them as they are."""

from __future__ import annotations

from collections.abc import Mapping
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
