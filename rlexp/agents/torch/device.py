"""The learner's device, its precision, and the transfer of batches to it and of results from it.

At the end, how a network that acts gets its weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.errors import ResourceError
from rlexp.models.torsos import UserTorso, load_arrays
from rlexp.policy import LiveWeights, Weights
from rlexp.sample_batch import Array, SampleBatch
from rlexp.schedules import derive_seed

Precision = Literal["float32", "tf32", "bfloat16"]
TorsoDraws = Callable[[int], AbstractContextManager[None]]
_STATE_BYTES: Final = (5056, 16)
"""Bytes of the states of torch's generators on a CPU (Mersenne Twister) and on a GPU (seed and offset)."""
BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
"""An x86 CPU needs one of these for bfloat16; without, updates take two to three times as long as in float32."""


def learner_device(num_gpus: float) -> str:
    """Return ``cuda`` if GPUs are reserved, else ``cpu``; raises ResourceError if torch sees no GPU.

    This process gets at most the share ``num_gpus`` of the GPU's memory; others have the rest.
    """
    if num_gpus == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise ResourceError(f"num_gpus is {num_gpus:g}, but this torch sees no GPU", "-o config.num_gpus=0")
    torch.cuda.set_per_process_memory_fraction(float(min(num_gpus, 1.0)))
    return "cuda"


def free_device_bytes(num_gpus: float) -> int | None:
    """Return the bytes of GPU memory that this process may still take; None on a CPU."""
    if num_gpus == 0:
        return None
    free, total = torch.cuda.mem_get_info()
    return min(free, int(total * min(num_gpus, 1.0)) - torch.cuda.memory_reserved())


def use_precision(precision: Precision, device: torch.device) -> None:
    """Let matrix products and convolutions on a GPU use TF32 only if ``precision`` is ``tf32``.

    The setting belongs to the process, so each learner sets it. By default torch uses TF32 in convolutions.
    """
    if device.type == "cuda":
        chosen = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cuda.matmul.fp32_precision = chosen
        torch.backends.cudnn.conv.fp32_precision = chosen  # type: ignore[attr-defined]


def torso_draws(networks: Sequence[nn.Module], seed: int, device: torch.device) -> TorsoDraws:
    """Return what lets a user's torso, such as one with Dropout, draw by the number of an update and the seed alone."""
    parts = (part for network in networks for part in network.modules())
    if not any(isinstance(part, UserTorso) and part.depends_on_mode for part in parts):
        return lambda number: nullcontext()

    @contextmanager
    def of_update(number: int) -> Iterator[None]:
        with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
            torch.manual_seed(derive_seed(seed, "torso", number))
            yield

    return of_update


def continue_generator(generator: torch.Generator, state: Array) -> bool:
    """Let ``generator`` continue from the ``get_state()`` of another one; return whether it can draw the same numbers.

    CPU and GPU generators have states of different forms. A state of the other kind gives a derived seed, which is the
    same at each read of the checkpoint. Raises ValueError for a state of neither kind.
    """
    if state.dtype != np.uint8 or state.ndim != 1 or len(state) not in _STATE_BYTES:
        raise ValueError("not the state of a random generator")
    if len(state) == generator.get_state().numel():
        generator.set_state(torch.tensor(state))
        return True
    generator.manual_seed(int.from_bytes(blake2b(state.tobytes(), digest_size=7).digest(), "little"))
    return False


def emulation(precision: Precision, device: str) -> str | None:
    """Return a notice for the user if ``device`` is a CPU that has to emulate ``precision``; else None.

    The needed instructions are known for x86 only. Older torch does not report a CPU's instructions.
    """
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if precision != "bfloat16" or device != "cpu" or capabilities.get("architecture") != "x86_64":
        return None
    if any(capabilities.get(name, True) for name in BFLOAT16_INSTRUCTIONS):
        return None
    return (
        f"learner_precision: bfloat16 is slower than float32 here: this CPU has neither "
        f"{' nor '.join(BFLOAT16_INSTRUCTIONS)}"
    )


def forward_passes(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a learner's forward passes; with ``bfloat16``, their products use that type."""
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


class DeviceBatch(SampleBatch):
    """Rows of replay whose observations were gathered on the learner's device; only a learner reads ``tensors``."""

    __slots__ = ("tensors",)

    def __init__(self, columns: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> None:
        """Take the columns in this process's memory, and ``tensors [B, ...]``, by name."""
        super().__init__(columns)
        self.tensors = dict(tensors)

    def with_columns(self, **columns: Array) -> SampleBatch:
        """Return a batch with the given columns added or replaced, and the same tensors."""
        return DeviceBatch({**self.columns, **columns}, self.tensors)


NUM_SLOTS = 4
"""Batches on a GPU or on their way to it: one that is learned, two begun after it, and one that is copied."""


def as_tensor(array: Array) -> Tensor:
    """Return an array as a CPU tensor: the same memory, or a copy if the array is read-only.

    Images whose channels are apart in memory, as in replay's frames, are made contiguous: otherwise an update of 64
    rows with convolutions on a CPU takes 26 % longer. This copy takes 4 %.
    """
    if array.flags.c_contiguous or array.ndim < 2:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    beside = np.empty(array.shape, array.dtype)
    for channel in range(array.shape[-1]):  # four times as fast as one copy of all
        beside[..., channel] = array[..., channel]
    return torch.from_numpy(beside)


def on_device(array: Array, device: torch.device) -> Tensor:
    """Return a copy of an array on a device; to a GPU, in the order of the current stream."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    copy = torch.empty(array.shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.copyto(copy.numpy(), array)
    return copy.to(device, non_blocking=True)  # torch reuses pinned memory only after the transfer has ended


class DeviceNumbers:
    """A few numbers of a learner: tensors if a GPU reads them, so that a CUDA graph does not fix them; else floats."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numbers: tuple[float, ...] = ()
        self._there = torch.empty(0, device=device)

    def of(self, *numbers: float) -> Sequence[float] | Tensor:
        """Return ``numbers``; on a GPU as a tensor ``[N]``, copied there if they have changed."""
        if self._device.type == "cpu":
            return numbers
        if numbers != self._numbers:
            self._numbers, self._there = numbers, on_device(np.array(numbers, np.float32), self._device)
        return self._there


class BatchStaging:
    """Copies the columns of a batch to the learner's device; the learner only reads them.

    On a CPU they are not copied. For a GPU there is a ring of slots, each with its own memory on both sides, so that no
    update allocates. A separate stream copies one batch while the GPU learns from another.
    """

    def __init__(self, columns: Sequence[str], device: torch.device, num_slots: int = NUM_SLOTS) -> None:
        """Let ``num_slots`` batches have their columns on a GPU at the same time."""
        self._columns = tuple(columns)
        self._device = device
        self._ring = _Ring(device, num_slots) if device.type == "cuda" else None

    def load(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Return the columns ``[B, ...]`` on the device.

        They are valid while the batch lasts, until a later call reuses their slot. Start every read of them in the
        current stream before the next call.
        """
        there = batch.tensors if isinstance(batch, DeviceBatch) else {}
        arrays = {name: batch[name] for name in self._columns if name not in there}
        if self._ring is None:
            loaded = {name: as_tensor(array) for name, array in arrays.items()}
        else:
            loaded = self._ring.copy(arrays)
        return {name: there[name] if name in there else loaded[name] for name in self._columns}


class _Ring:
    """Owns the slots and the copy stream of a BatchStaging."""

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
    """The memory of one batch, page-locked on the host's side, and the event after which it may be written again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: dict[str, Tensor] = {}
        self._there: dict[str, Tensor] = {}
        self._copied, self._read = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def was_read(self) -> None:
        """Note that every read of the last batch has been started in the current stream."""
        self._read.record()

    def copy(self, arrays: Mapping[str, Array], stream: torch.cuda.Stream) -> dict[str, Tensor]:
        """Start to copy ``arrays`` in ``stream``; later work in the current stream waits for the copy."""
        self._copied.synchronize()  # for the last batch in this slot, several updates ago
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
            torch.cuda.synchronize(self._device)  # a stream may still read the replaced memory
            self._pinned[name] = torch.from_numpy(np.empty_like(array)).pin_memory()  # the same layout
            self._there[name] = torch.empty_like(self._pinned[name], device=self._device)


def say_nothing(notice: str) -> None:
    """Drop a notice."""


NUM_UNCAPTURED = 3
"""Calls of a CapturedWork before it captures, as libraries choose kernels and take memory in the first ones."""
MOST_GRAPHS = 8
"""Graphs that a CapturedWork has at most, for different shapes of batches and settings; others have none."""

Tensors = Mapping[str, Tensor]
Work = Callable[..., Sequence[Tensor]]
"""A function of tensors by name, and of settings that can be hashed.

Apart from the tensors, it reads and writes only memory that stays where it is.
"""


class CapturedWork:
    """A function whose operations a GPU starts all at once, as a CUDA graph; owned by one thread.

    An update of a small network is a hundred operations, and Python needs more time to start each of them than a GPU
    to compute it. The operations of one call are captured and repeated by the next calls with the same shapes and
    settings, so the function may neither wait for the GPU nor decide anything by other values. On a CPU it is called as
    it is, and so it is if the user wrote the torso of a network, as such a torso may decide by values.
    """

    def __init__(
        self, work: Work, networks: Sequence[nn.Module], device: torch.device, note: Callable[[str], None]
    ) -> None:
        """Initialise; ``work`` goes through ``networks``.

        ``note`` gets a notice for the user if a capture fails, after which no more is tried.
        """
        self._work, self._note = work, note
        parts = (part for network in networks for part in network.modules())
        self.can_capture = device.type == "cuda" and not any(isinstance(part, UserTorso) for part in parts)
        """Whether graphs are made, or tried."""
        self._num_calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, tensors: Tensors, *settings: Hashable) -> Sequence[Tensor]:
        """Return what the function returns for ``tensors``; valid until the next call."""
        graph = self._graph_for(tensors, settings) if self.can_capture else None
        return self._work(tensors, *settings) if graph is None else graph.replay(tensors)

    def _graph_for(self, tensors: Tensors, settings: tuple[Hashable, ...]) -> _Graph | None:
        shapes = tuple((name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors.items())
        key = settings, shapes
        num_calls = self._num_calls[key] = self._num_calls.get(key, 0) + 1
        if key not in self._graphs and num_calls > NUM_UNCAPTURED and len(self._graphs) < MOST_GRAPHS:
            try:
                self._graphs[key] = _Graph(self._work, tensors, settings)
            except RuntimeError as error:
                self.can_capture = False
                reason = str(error).partition("\n")[0]
                self._note(f"the GPU starts the operations of an update one by one, as CUDA graphs failed: {reason}")
        return self._graphs.get(key)


class _Graph:
    """The operations of one call, and the memory from which they read and to which they write."""

    def __init__(self, work: Work, tensors: Tensors, settings: tuple[Hashable, ...]) -> None:
        self._inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        self._graph = torch.cuda.CUDAGraph()
        is_collecting = gc.isenabled()
        gc.collect()
        gc.disable()  # freeing an older graph's memory would end the capture
        try:
            # A capture that fails leaves its stream as the current one. Another thread may use the GPU meanwhile: a
            # replay shard whose frames are there.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(self._graph, capture_error_mode="thread_local"),
            ):
                self._outputs = work(self._inputs, *settings)
        finally:
            if is_collecting:
                gc.enable()

    def replay(self, tensors: Tensors) -> Sequence[Tensor]:
        for name, tensor in tensors.items():
            self._inputs[name].copy_(tensor)
        self._graph.replay()
        return self._outputs


class LateNumbers:
    """Tensors on their way from a learner's device; ``read`` waits for them. On a CPU they need no wait."""

    def __init__(self, *tensors: Tensor) -> None:
        """Start to copy ``tensors [N]`` of one type, after the computation of them has ended."""
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
        """Return the tensors as arrays ``[N]``, in order; on a CPU they share the tensors' memory."""
        if self._copied is None:
            return [tensor.numpy() for tensor in self._tensors]
        self._copied.synchronize()
        return [tensor.numpy().copy() for tensor in self._tensors]


class ActingWeights:
    """Gives a network that acts its weights: copies of them, or a learner's own memory."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._live: LiveWeights | None = None

    def load(self, weights: Weights) -> None:
        """Let the network act with a copy of ``weights``, or in place with the weights of a learner in this thread."""
        if not isinstance(weights, LiveWeights):
            if self._live is not None:  # a copy into the learner's memory would change the learner
                self._share({name: array.copy() for name, array in self._live.items()})
                self._live = None
            load_arrays(self._network, weights)
        elif weights is not self._live:
            self._share(weights)
            self._live = weights

    def _share(self, weights: Weights) -> None:
        """Let the parameters read ``weights``, which have all their names, in place from now on."""
        for name, parameter in self._network.named_parameters():
            parameter.data = torch.from_numpy(weights[name])
