"""Fully connected layers with a gradient computed by hand, in NumPy: for small ones, autograd is mostly overhead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.models.layer_products import products_of
from rlexp.models.numpy_layers import ACTIVATIONS
from rlexp.sample_batch import Array

Slope = Callable[[Array, Array], None]
"""Multiplies a gradient ``[B, N]`` in place by the derivative of an activation, of which ``[B, N]`` is the output."""


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """Views of one layer's parameters, and of where their gradient belongs."""

    weight: Array
    """``[fan_out, fan_in]``, as torch has it."""
    bias: Array
    """``[fan_out]``."""
    weight_gradient: Array
    bias_gradient: Array
    activation: str
    """A name in SLOPES."""


class DenseLayers:
    """Layers one behind the other, in the memory of a network that changes them; owned by one thread."""

    def __init__(self, layers: Sequence[DenseLayer]) -> None:
        self._layers = tuple((layer, products_of(layer.weight, layer.weight_gradient)) for layer in layers)

    def forward(self, x: Array) -> list[Array]:
        """Return ``x [B, N]`` and the output of each layer, float32; the last one is the result."""
        outputs = [x]
        for layer, products in self._layers:
            x = products.outputs(x)
            x += layer.bias
            x = ACTIVATIONS[layer.activation](x)
            outputs.append(x)
        return outputs

    def backward(self, outputs: Sequence[Array], gradient: Array, with_input: bool) -> Array:
        """Write the layers' gradient; return that of the input ``[B, N]`` where ``with_input``, else anything.

        ``outputs`` are those of :meth:`forward`, ``gradient`` is that of the last one; it is overwritten.
        """
        for index in range(len(self._layers) - 1, -1, -1):
            layer, products = self._layers[index]
            SLOPES[layer.activation](gradient, outputs[index + 1])
            products.write_weight_gradient(outputs[index], gradient)
            np.add.reduce(gradient, axis=0, out=layer.bias_gradient)
            if index or with_input:
                gradient = products.input_gradient(gradient)
        return gradient


def _relu(gradient: Array, output: Array) -> None:
    gradient *= output > 0


def _tanh(gradient: Array, output: Array) -> None:
    gradient *= 1 - output * output


def _elu(gradient: Array, output: Array) -> None:
    gradient *= np.minimum(output, 0) + 1


def _linear(gradient: Array, output: Array) -> None:
    return None


SLOPES: Final[Mapping[str, Slope]] = {"relu": _relu, "tanh": _tanh, "elu": _elu, "linear": _linear}
"""By name, activations whose derivative follows from their output."""
