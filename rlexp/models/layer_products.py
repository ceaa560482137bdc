"""The matrix products of one fully connected layer and its gradient, by the library that is quickest at its size."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from rlexp.sample_batch import Array

MIN_WEIGHTS_FOR_TORCH: Final = 128 * 128
"""Weights of a layer from which on torch multiplies: on one thread, 64 rows by 256 x 256 take it 235 µs forward and
backward, NumPy 280 µs. On fewer weights, calling torch costs more than its products save."""


class LayerProducts(Protocol):
    """Multiplies by one layer's weights ``[fan_out, fan_in]``, which it reads where they are; all is float32."""

    def outputs(self, x: Array) -> Array:
        """Return ``x @ weight.T [B, fan_out]`` of ``x [B, fan_in]``, in memory of its own."""
        ...

    def write_weight_gradient(self, x: Array, gradient: Array) -> None:
        """Write ``gradient.T @ x`` to the gradient of the weights; ``gradient [B, fan_out]`` is that of the outputs."""
        ...

    def input_gradient(self, gradient: Array) -> Array:
        """Return ``gradient @ weight [B, fan_in]``, in memory of its own."""
        ...


class NumpyProducts:
    """The LayerProducts of a small layer."""

    def __init__(self, weight: Array, weight_gradient: Array) -> None:
        """Read ``weight`` and write to ``weight_gradient``, both ``[fan_out, fan_in]``."""
        self._weight, self._weight_gradient = weight, weight_gradient

    def outputs(self, x: Array) -> Array:
        outputs: Array = x @ self._weight.T
        return outputs

    def write_weight_gradient(self, x: Array, gradient: Array) -> None:
        np.matmul(gradient.T, x, out=self._weight_gradient)

    def input_gradient(self, gradient: Array) -> Array:
        product: Array = gradient @ self._weight
        return product


class TorchProducts:
    """The LayerProducts of a large layer."""

    def __init__(self, weight: Array, weight_gradient: Array) -> None:
        """Read ``weight`` and write to ``weight_gradient``, both ``[fan_out, fan_in]``."""
        self._weight, self._weight_gradient = torch.from_numpy(weight), torch.from_numpy(weight_gradient)
        self._transposed = self._weight.T

    def outputs(self, x: Array) -> Array:
        outputs: Array = torch.mm(_tensor_of(x), self._transposed).numpy()
        return outputs

    def write_weight_gradient(self, x: Array, gradient: Array) -> None:
        torch.mm(_tensor_of(gradient).T, _tensor_of(x), out=self._weight_gradient)

    def input_gradient(self, gradient: Array) -> Array:
        product: Array = torch.mm(_tensor_of(gradient), self._weight).numpy()
        return product


def products_of(weight: Array, weight_gradient: Array) -> LayerProducts:
    """Return the quickest products by ``weight``, which write to ``weight_gradient``, both ``[fan_out, fan_in]``."""
    return (TorchProducts if weight.size >= MIN_WEIGHTS_FOR_TORCH else NumpyProducts)(weight, weight_gradient)


def _tensor_of(array: Array) -> Tensor:
    """Return a view, or a copy of what cannot be written to, as a batch that came through Ray: torch would warn."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
