"""The device that a learner computes on."""

from __future__ import annotations

import torch

from rlexp.errors import ResourceError


def learner_device(num_gpus: float) -> str:
    """Return ``cuda`` where GPUs are reserved, else ``cpu``; raises ResourceError where torch sees no GPU."""
    if num_gpus == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise ResourceError(f"num_gpus is {num_gpus:g}, but this torch sees no GPU", "-o config.num_gpus=0")
    return "cuda"
