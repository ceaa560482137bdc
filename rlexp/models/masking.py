"""Masking, for either library: which actions of a row are allowed, and outputs of networks that obey it.

A row is an observation, flat, followed by the mask of A actions: see ``rlexp.envs.action_masks``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from torch import Tensor

MASKED: Final = -1e30
"""The logit or value of an action that is not allowed. Its probability is 0 in float32, and products of it with a
probability or a coefficient stay finite, as they would not with minus infinity."""

Numbers = TypeVar("Numbers", "Array", "Tensor")


@dataclass(frozen=True)
class Masking:
    """Divides rows ``[B, N + A]``, and masks outputs ``[B, A]``."""

    observation_shape: tuple[int, ...]
    """Shape of an observation of N numbers."""
    num_actions: int

    def observations(self, rows: Numbers) -> Numbers:
        """Return the observations ``[B, *observation_shape]``, as a view if they are vectors."""
        observations = cast(Any, rows)[:, : -self.num_actions]
        if len(self.observation_shape) > 1:
            observations = observations.reshape((rows.shape[0], *self.observation_shape))
        return cast(Numbers, observations)

    def allowed(self, rows: Numbers) -> Numbers:
        """Return whether each action is allowed ``[B, A]``."""
        return cast(Numbers, cast(Any, rows)[:, -self.num_actions :] != 0)

    def of_arrays(self, outputs: Array, rows: Array) -> Array:
        """Return ``outputs [B, A]`` with MASKED for the actions that ``rows`` do not allow."""
        return masked(outputs, self.allowed(rows))

    def of_tensors(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the same of tensors; no gradient passes a masked output."""
        return outputs.masked_fill(~self.allowed(rows), MASKED)


def masked(outputs: Array, allowed: Array) -> Array:
    """Return ``outputs [B, A]`` with MASKED where an action is not ``allowed [B, A]``."""
    return np.where(allowed, outputs, np.float32(MASKED))
