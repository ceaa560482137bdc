"""Replay with its frames on the learner's device, where batches are also gathered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.torch.device import DeviceBatch, on_device
from rlexp.errors import CheckpointError, ResourceError
from rlexp.replay.rows import RowRing
from rlexp.replay.storage.frame_pool import FRAMES, PACKED
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import FRAME_IDS_OF, Array, SampleBatch
from rlexp.states import AnyArray, LazyArray

GROWTH = 9 / 8
"""Factor by which the memory grows if more frames are held than were expected; it is copied then."""
LOADED_FRAMES = 4096
"""Frames of a state that are copied to the device at a time."""
SHARE_OF_MEMORY = 0.9
"""Share of a GPU's free memory that frames may take; the rest is for batches and updates."""


class DeviceFrames:
    """A FrameMemory in one tensor on a device, with one block per frame; owned by a FramePool."""

    block_size = 1

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device, num_expected: int) -> None:
        """Take memory for ``num_expected`` frames at once, as growing later needs the old and new memory together."""
        self._dtype = dtype
        self._device = device
        self._frames = self._empty(num_expected, shape)
        self._num_blocks = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the used blocks, without the reserved memory."""
        return self._num_blocks * math.prod(self._frames.shape[1:]) * self._dtype.itemsize

    def grow(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        if num_blocks > len(self._frames):
            grown = self._empty(max(num_blocks, int(len(self._frames) * GROWTH)), tuple(self._frames.shape[1:]))
            grown[: len(self._frames)] = self._frames
            self._frames = grown

    def write(self, blocks: Array, frames: Array) -> None:
        self._frames.index_copy_(0, self._there(blocks.astype(np.int64)), self._there(frames))

    def gather(self, ids: Array) -> Tensor:
        """Return a copy of the frames ``ids [F]`` on the device, ``[F, ...]``."""
        return self._frames.index_select(0, self._there(ids))

    def read(self, ids: Array, out: Array) -> None:
        np.copyto(out, self.gather(ids).cpu().numpy())

    def state(self, blocks: Array) -> dict[str, AnyArray]:
        shape = (len(blocks), *self._frames.shape[1:])

        def read(start: int, stop: int) -> Array:
            frames: Array = self.gather(blocks[start:stop]).cpu().numpy()
            return frames

        return {FRAMES: LazyArray(shape, self._dtype, read)}

    def load(self, state: Mapping[str, Array], num_blocks: int) -> None:
        frames = state[FRAMES]
        if PACKED in state or len(frames) != num_blocks:
            raise CheckpointError(f"a replay state should hold {num_blocks} plain frames, but holds {len(frames)}")
        for start in range(0, num_blocks, LOADED_FRAMES):
            stop = min(start + LOADED_FRAMES, num_blocks)
            self._frames[start:stop] = self._there(frames[start:stop])

    def _there(self, array: Array) -> Tensor:
        return on_device(array, self._device)

    def _empty(self, count: int, shape: tuple[int, ...]) -> Tensor:
        dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype
        try:
            return torch.empty((count, *shape), dtype=dtype, device=self._device)
        except torch.OutOfMemoryError as error:
            gib = count * math.prod(shape) * self._dtype.itemsize / 2**30
            message = f"replay_storage: device needs {gib:.1f} GiB more of the GPU's memory for {count:,} frames"
            raise ResourceError(message, "lower buffer_size, or use replay_storage: local") from error


class DeviceFrameStorage(FrameStorage):
    """A FrameStorage with frames and gathered observations on a device."""

    def __init__(self, capacity: int, device: torch.device, num_expected: int) -> None:
        """Hold ``capacity`` rows with about ``num_expected`` frames; no memory is taken yet."""
        self._device = device
        self._num_expected = num_expected
        super().__init__(capacity, self._make_frames)

    def close(self) -> None:
        """Free the memory, also on the device; idempotent."""
        super().close()
        self._frames: DeviceFrames | None = None

    def _make_frames(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceFrames:
        self._frames = DeviceFrames(shape, dtype, self._device, self._num_expected)
        return self._frames

    def _with_observations(self, rows: SampleBatch, ids: Array) -> SampleBatch:
        assert self._frames is not None
        frames = self._frames.gather(ids.reshape(-1))
        columns, tensors = dict(rows.columns), {}
        names = [(obs, name) for obs, name in FRAME_IDS_OF.items() if name in rows]
        for (obs, name), stacks in zip(names, frames.reshape(*ids.shape, *frames.shape[1:]), strict=True):
            del columns[name]
            tensors[obs] = _side_by_side(stacks)
        return DeviceBatch(columns, tensors)


def device_rows(capacity: int, device: str, num_expected: int) -> RowRing:
    """Return the rows of a shard, with about ``num_expected`` frames on ``device``."""
    return RowRing(capacity, DeviceFrameStorage(capacity, torch.device(device), num_expected))


def check_frames_fit(needed: float, free: int | None, buffer_size: int) -> None:
    """Raise ResourceError if ``buffer_size`` rows ``need`` more bytes than a GPU has ``free``; None: not known."""
    if free is None or needed <= SHARE_OF_MEMORY * free:
        return
    fitting = max(int(buffer_size * SHARE_OF_MEMORY * free / needed), 1)
    raise ResourceError(
        f"replay_storage: device would need {needed / 2**30:.1f} GiB of the GPU's memory for frames, "
        f"{free / 2**30:.1f} GiB are free",
        f"-o config.buffer_size={fitting}",
    )


def _side_by_side(stacks: Tensor) -> Tensor:
    """Return observations ``[B, ..., K C]`` of their frames ``[B, K, ..., C]``; a view if C or K is 1."""
    return stacks.movedim(1, -2).flatten(-2)
