"""The way of a batch from plain arrays, which may be read-only, to tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlexp.sample_batch import Array, SampleBatch


def as_tensor(array: Array) -> Tensor:
    """Return an array as a CPU tensor: the same memory, or a copy where torch could write into read-only memory."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class BatchStaging:
    """Keeps one tensor per column and copies every batch into it, so that no update allocates.

    On a GPU the tensors are pinned and the transfer is asynchronous; the caller reads a result of the
    batch back before it loads the next one, which keeps the tensors from being overwritten too early.
    """

    def __init__(self, columns: Sequence[str], device: torch.device) -> None:
        self._columns = tuple(columns)
        self._device = device
        self._host: dict[str, tuple[Tensor, Array]] = {}

    def load(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Return the columns ``[B, ...]`` on the device, valid until the next call."""
        return {name: self._load(name, batch[name]) for name in self._columns}

    def _load(self, name: str, column: Array) -> Tensor:
        tensor, view = self._host.get(name, (None, None))
        if tensor is None or view is None or view.shape != column.shape or view.dtype != column.dtype:
            tensor = torch.from_numpy(np.empty_like(column))
            if self._device.type == "cuda":
                tensor = tensor.pin_memory()
            view = tensor.numpy()
            self._host[name] = (tensor, view)
        np.copyto(view, column)
        return tensor.to(self._device, non_blocking=True)
