"""The device that a learner computes on, how much of it, and in which precision."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from typing import Any, Final, Literal

import numpy as np
import torch

from rlexp.errors import ResourceError
from rlexp.sample_batch import Array

Precision = Literal["float32", "tf32", "bfloat16"]
_STATE_BYTES: Final = (5056, 16)
"""Of torch's generators on a CPU (Mersenne Twister) and on a GPU (seed and offset)."""
BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
"""One of these an x86 CPU needs for bfloat16: without, updates take two to three times as long as in float32."""


def learner_device(num_gpus: float) -> str:
    """Return ``cuda`` where GPUs are reserved, else ``cpu``; raises ResourceError where torch sees no GPU.

    This process gets at most the part ``num_gpus`` of the GPU's memory, since others have the rest.
    """
    if num_gpus == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise ResourceError(f"num_gpus is {num_gpus:g}, but this torch sees no GPU", "-o config.num_gpus=0")
    torch.cuda.set_per_process_memory_fraction(min(num_gpus, 1.0))
    return "cuda"


def free_device_bytes(num_gpus: float) -> int | None:
    """Return the bytes that this process may still get of its GPU's memory; None on a CPU."""
    if num_gpus == 0:
        return None
    free, total = torch.cuda.mem_get_info()
    return min(free, int(total * min(num_gpus, 1.0)) - torch.cuda.memory_reserved())


def use_precision(precision: Precision, device: torch.device) -> None:
    """Let matrix products and convolutions on a GPU use TF32 only where ``precision`` is ``tf32``.

    The setting is the process's, so each learner sets it. By itself torch uses TF32 in convolutions.
    """
    if device.type == "cuda":
        chosen = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cuda.matmul.fp32_precision = chosen
        torch.backends.cudnn.conv.fp32_precision = chosen  # type: ignore[attr-defined]


def continue_generator(generator: torch.Generator, state: Array) -> bool:
    """Let ``generator`` continue from the ``get_state()`` of another one; return whether it can draw the same numbers.

    Generators of CPUs and GPUs have states of different forms: one of the other kind gets a seed that is derived from
    the state, so that it is the same whenever the same checkpoint is read. Raises ValueError for a state of neither.
    """
    if state.dtype != np.uint8 or state.ndim != 1 or len(state) not in _STATE_BYTES:
        raise ValueError("not the state of a random generator")
    if len(state) == generator.get_state().numel():
        generator.set_state(torch.tensor(state))
        return True
    generator.manual_seed(int.from_bytes(blake2b(state.tobytes(), digest_size=7).digest(), "little"))
    return False


def emulation(precision: Precision, device: str) -> str | None:
    """Return a sentence for the user where ``device`` is a CPU that has to emulate ``precision``; else None.

    Only of x86 it is known which instructions that needs. Older torch does not say what a CPU has.
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
    """Return the context of a learner's forward passes: with ``bfloat16`` their products are computed in it."""
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
