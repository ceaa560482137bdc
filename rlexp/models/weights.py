"""The weights of a network by name: what is sent to those who act with it, and read back from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlexp.sample_batch import Array


def named_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return all that a network's outputs depend on, as views: its parameters, and buffers of floating-point numbers.

    A parameter with several names has its first one here. Left out are the counters of batches that BatchNorm has.
    """
    named: dict[str, Tensor] = dict(network.named_parameters())
    for name, tensor in network.state_dict(keep_vars=True).items():
        if not isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
            named[name] = tensor
    return named


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights``, whose names are those of ``named_weights``; raises RuntimeError where they are others'."""
    sent = named_weights(network).keys()
    kept = {name: tensor for name, tensor in network.state_dict().items() if name not in sent}
    network.load_state_dict({**kept, **weights})


def load_arrays(network: nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy weights as they are sent and saved; raises as ``load_weights`` does."""
    load_weights(network, {name: torch.tensor(array) for name, array in weights.items()})
