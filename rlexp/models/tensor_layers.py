"""Fully connected layers in torch with gradients by hand, on any device: autograd is mostly overhead for small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from rlexp.models.dense_gradients import DenseLayers
from rlexp.models.torsos import VectorTorso

MOST_NARROW_INPUTS: Final = 32
"""Most inputs of a layer that is called narrow. On a CPU, a product of 256 x 256 by 256 x 4 numbers takes 80 µs, and
its transpose from the transposed factors 15 µs (one core of an AMD EPYC, 2026-11-26)."""


class TensorLayer:
    """A DifferentiableLayer in torch, which adds to the gradients of its parameters."""

    def __init__(self, linear: nn.Linear, activation: type[nn.Module]) -> None:
        """Initialise from a layer of a network, in its memory; without a gradient it only goes forwards."""
        # As tensors, as a module would look each of them up among its attributes at every update.
        self._weight, self._bias = linear.weight.data, linear.bias.data
        self._transposed = self._weight.t()
        self._of_weight, self._of_bias = linear.weight.grad, linear.bias.grad
        self._activation, self._slope = _FORWARD[activation], _BACKWARD[activation]
        self._is_narrow = self._weight.device.type == "cpu" and linear.in_features <= MOST_NARROW_INPUTS

    def forward(self, x: Tensor) -> Tensor:
        return self._activation(torch.addmm(self._bias, x, self._transposed))

    def backward(self, x: Tensor, output: Tensor, gradient: Tensor, with_input: bool) -> Tensor:
        gradient = self._slope(gradient, output)
        assert self._of_weight is not None
        assert self._of_bias is not None
        if self._is_narrow:
            self._of_weight.add_((x.t() @ gradient).t())
        else:
            self._of_weight.addmm_(gradient.t(), x)
        self._of_bias.add_(gradient.sum(dim=0))
        return self._of_input(gradient) if with_input else gradient

    def input_gradient(self, output: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the input ``[B, fan_in]`` from the ``gradient [B, fan_out]`` of ``output``."""
        return self._of_input(self._slope(gradient, output))

    def _of_input(self, gradient: Tensor) -> Tensor:
        return (self._transposed @ gradient.t()).t() if self._is_narrow else gradient @ self._weight


class TensorLayers(DenseLayers[Tensor]):
    """Linear layers, each followed by an activation or by the next one, in the memory of a network."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        found: list[tuple[nn.Linear, type[nn.Module]]] = []
        for module in modules:
            if isinstance(module, nn.Linear):
                found.append((module, nn.Identity))
            else:
                found[-1] = found[-1][0], type(module)
        layers = [TensorLayer(*each) for each in found]
        super().__init__(layers)
        self._tensor_layers = layers

    def __len__(self) -> int:
        return len(self._tensor_layers)

    def input_gradient(self, outputs: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Return the gradient of the input ``[B, N]`` alone; the arguments are as for ``backward``."""
        for layer, output in zip(reversed(self._tensor_layers), reversed(outputs), strict=False):
            gradient = layer.input_gradient(output, gradient)
        return gradient


def can_be_layered(torso: nn.Module) -> bool:
    """Return whether a torso has only layers that TensorLayers know."""
    return isinstance(torso, VectorTorso) and are_known(torso)


def are_known(layers: Iterable[nn.Module]) -> bool:
    """Return whether TensorLayers know each of ``layers``."""
    return all(type(layer) in {nn.Linear, *_BACKWARD} for layer in layers)


_FORWARD: Final[Mapping[type[nn.Module], Callable[[Tensor], Tensor]]] = {
    nn.Tanh: torch.tanh_,
    nn.ReLU: torch.relu_,
    nn.Identity: lambda x: x,
}
_BACKWARD: Final[Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.ReLU: lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    nn.Identity: lambda gradient, output: gradient,
}
"""Functions for the gradient before an activation, from the gradient after it and its output."""
