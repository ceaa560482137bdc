"""Adam in NumPy for networks so small that calling torch takes most of a step."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rlexp.agents.torch.flat_adam import BETA1, BETA2, FlatAdam

MOST_PARAMETERS: Final = 16_000
"""Up to so many it is quicker than torch's fused step."""


class NumpyAdam:
    """Does the step of a ``FlatAdam`` on a CPU, in the memory of that; steps of both can alternate."""

    def __init__(self, adam: FlatAdam) -> None:
        self._adam = adam
        self._values, self._mean, self._mean_square, self._num_steps = (each.numpy() for each in adam.tensors())
        self._gradient = adam.gradient.numpy()
        self._scratch = np.empty_like(self._gradient)

    def step(self, lr: float) -> float:
        """Move the parameters along the gradient (Kingma and Ba 2015, algorithm 1); return its norm before clipping."""
        gradient, scratch, limit = self._gradient, self._scratch, self._adam.max_norm
        norm = math.sqrt(np.dot(gradient, gradient))
        if limit is not None and norm + 1e-6 > limit:
            gradient *= limit / (norm + 1e-6)
        self._num_steps += 1
        step = float(self._num_steps)
        np.multiply(gradient, 1 - BETA1, out=scratch)
        self._mean *= BETA1
        self._mean += scratch
        np.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - BETA2
        self._mean_square *= BETA2
        self._mean_square += scratch
        np.sqrt(self._mean_square, out=scratch)
        scratch *= 1 / math.sqrt(1 - BETA2**step)
        scratch += self._adam.epsilon
        np.divide(self._mean, scratch, out=scratch)
        scratch *= lr / (1 - BETA1**step)
        self._values -= scratch
        return norm
