"""A learner's memory: batches on their way from plain arrays to tensors on its device, and what the process keeps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlexp.sample_batch import Array, SampleBatch

# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_BLOCK = 1 << 28
"""Bytes of the largest block that is kept: more than any tensor of an update."""
LARGEST_BLOCK_OF_OLD = 1 << 25
"""What an older glibc, which refuses the other, allows at most."""
MOST_KEPT = 1 << 30
"""Bytes that are kept at most, all blocks together."""


def as_tensor(array: Array) -> Tensor:
    """Return an array as a CPU tensor: the same memory, or a copy where torch could write into read-only memory.

    Images whose channels lie apart, as replay keeps its frames, are put together: convolutions on a CPU take
    an update of 64 rows 26 % longer otherwise, and this takes 4 %.
    """
    if array.flags.c_contiguous or array.ndim < 2:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    beside = np.empty(array.shape, array.dtype)
    for channel in range(array.shape[-1]):  # four times as quick as a copy at once
        beside[..., channel] = array[..., channel]
    return torch.from_numpy(beside)


class BatchStaging:
    """Brings the columns of a batch to the learner's device; the learner only reads them.

    On a CPU they stay where they are. For a GPU there is one pinned tensor per column, which every batch is
    copied into, so that no update allocates and the transfer is asynchronous; the caller reads a result of
    the batch back before it loads the next one, which keeps the tensors from being overwritten too early.
    """

    def __init__(self, columns: Sequence[str], device: torch.device) -> None:
        self._columns = tuple(columns)
        self._device = device
        self._pinned: dict[str, Tensor] = {}

    def load(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Return the columns ``[B, ...]`` on the device, valid until the next call and while the batch lasts."""
        if self._device.type == "cpu":
            return {name: as_tensor(batch[name]) for name in self._columns}
        return {name: self._pin(name, batch[name]).to(self._device, non_blocking=True) for name in self._columns}

    def _pin(self, name: str, column: Array) -> Tensor:
        pinned = self._pinned.get(name)
        if pinned is None or pinned.shape != column.shape or pinned.numpy().dtype != column.dtype:
            pinned = self._pinned[name] = torch.from_numpy(np.empty_like(column)).pin_memory()  # laid out alike
        np.copyto(pinned.numpy(), column)
        return pinned


def keep_freed_memory() -> None:
    """Let this process keep freed memory, as much as an update takes; does nothing where there is no glibc.

    glibc returns large blocks to the system. It then gets them back page by page, each one cleared first: for
    convolutions over 512 stacks of Atari frames that is more than half the time of an update.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if any(mallopt(M_MMAP_THRESHOLD, size) for size in (LARGEST_BLOCK, LARGEST_BLOCK_OF_OLD)):
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
        mallopt(M_ARENA_MAX, 1)  # the heaps of a thread of its own are small, and returned whatever the thresholds say
