"""Batches on their way from plain arrays to tensors on a learner's device, and the results on their way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.torch.device_batch import DeviceBatch
from rlexp.sample_batch import Array, SampleBatch

NUM_SLOTS = 4
"""Batches on a GPU or on their way to it: one that is learned from, two begun after it, and one that is copied."""


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


def on_device(array: Array, device: torch.device) -> Tensor:
    """Return a copy of an array on a device; to a GPU it is made in the order of the current stream."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    copy = torch.empty(array.shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.copyto(copy.numpy(), array)
    return copy.to(device, non_blocking=True)  # torch uses pinned memory again only when the transfer has ended


class BatchStaging:
    """Brings the columns of a batch to the learner's device; the learner only reads them.

    On a CPU they stay where they are. For a GPU there is a ring of slots, each with memory of its own on both sides,
    so that no update allocates, and a stream of copies: one batch is copied while the GPU learns from another.
    """

    def __init__(self, columns: Sequence[str], device: torch.device, num_slots: int = NUM_SLOTS) -> None:
        """Let ``num_slots`` batches have their columns on a GPU at a time."""
        self._columns = tuple(columns)
        self._device = device
        self._ring = _Ring(device, num_slots) if device.type == "cuda" else None

    def load(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Return the columns ``[B, ...]`` on the device.

        They are valid while the batch lasts, until the call has come that uses their slot again. All that reads them
        has to be started, in the current stream, before the next call.
        """
        there = batch.tensors if isinstance(batch, DeviceBatch) else {}
        arrays = {name: batch[name] for name in self._columns if name not in there}
        if self._ring is None:
            loaded = {name: as_tensor(array) for name, array in arrays.items()}
        else:
            loaded = self._ring.copy(arrays)
        return {name: there[name] if name in there else loaded[name] for name in self._columns}


class _Ring:
    """Owns the slots and the stream of copies of a BatchStaging."""

    def __init__(self, device: torch.device, num_slots: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = [_Slot(device) for _ in range(num_slots)]
        self._next = 0

    def copy(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        self._slots[self._next - 1].was_read()
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot.copy(arrays, self._stream)


class _Slot:
    """The memory of one batch, page-locked on the host's side, and what says when it may be written again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: dict[str, Tensor] = {}
        self._there: dict[str, Tensor] = {}
        self._copied, self._read = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def was_read(self) -> None:
        """Note that all that reads the last batch has been started in the current stream."""
        self._read.record()

    def copy(self, arrays: Mapping[str, Array], stream: torch.cuda.Stream) -> dict[str, Tensor]:
        """Start to copy ``arrays`` in ``stream``; what is started in the current stream from now on comes after it."""
        self._copied.synchronize()  # of the last batch in this slot, several updates ago
        for name, array in arrays.items():
            self._make_room(name, array)
            np.copyto(self._pinned[name].numpy(), array)
        with torch.cuda.stream(stream):
            stream.wait_event(self._read)
            for name in arrays:
                self._there[name].copy_(self._pinned[name], non_blocking=True)
            self._copied.record(stream)
        torch.cuda.current_stream(self._device).wait_event(self._copied)
        return {name: self._there[name] for name in arrays}

    def _make_room(self, name: str, array: Array) -> None:
        pinned = self._pinned.get(name)
        if pinned is None or pinned.shape != array.shape or pinned.numpy().dtype != array.dtype:
            torch.cuda.synchronize(self._device)  # a stream may still read the memory that this replaces
            self._pinned[name] = torch.from_numpy(np.empty_like(array)).pin_memory()  # laid out alike
            self._there[name] = torch.empty_like(self._pinned[name], device=self._device)


class LateNumbers:
    """Tensors on their way from a learner's device; ``read`` waits for them. On a CPU they are there at once."""

    def __init__(self, *tensors: Tensor) -> None:
        """Start to copy ``tensors [N]`` of one type, once what computes them has ended."""
        self._tensors: Sequence[Tensor] = tensors
        self._copied: torch.cuda.Event | None = None
        if tensors[0].device.type == "cuda":
            joined = torch.cat(tensors)
            pinned = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
            pinned.copy_(joined, non_blocking=True)
            self._tensors = torch.split(pinned, [len(tensor) for tensor in tensors])
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def read(self) -> list[Array]:
        """Return them as arrays ``[N]``, in order; on a CPU they share the tensors' memory."""
        if self._copied is None:
            return [tensor.numpy() for tensor in self._tensors]
        self._copied.synchronize()
        return [tensor.numpy().copy() for tensor in self._tensors]
