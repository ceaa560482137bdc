"""What an algorithm gives for an export: its network as torch has it, and what its policy computes, to check by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rlexp.sample_batch import Array


@dataclass(frozen=True)
class Exportable:
    """The greedy policy of one algorithm, twice."""

    network: nn.Module
    """Returns for what the policy sees ``[B, ...]`` its actions ``[B, ...]``, and then the arrays of ``output_names``.

    The first of these arrays are what actions are chosen by.
    """
    output_names: tuple[str, ...]
    outputs: Callable[[Array], tuple[Array, ...]]
    """The same arrays as the policy computes them; raises NotFiniteError."""
    choose: Callable[[Array], Array]
    """Returns the policy's actions ``[B, ...]`` by the first of these arrays."""


def torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    """Return the type of torch that is a type of NumPy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype
