"""Fully connected layers in NumPy, for acting: on a few rows, torch would be mostly overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np

from rlexp.models.network_config import BYTE_CENTER, TorsoConfig
from rlexp.sample_batch import Array

Activation = Callable[[Array], Array]
"""Maps an array ``[B, N]``, which it may overwrite, to one of the same shape."""


class Layer(Protocol):
    """One layer of a network."""

    def apply(self, x: Array) -> Array:
        """Return the output ``[B, fan_out]`` of ``x [B, fan_in]``, both float32, and leave ``x`` as it is."""
        ...


@dataclass(frozen=True)
class Linear:
    """A layer ``x @ weight + bias``, then ``activation``."""

    weight: Array
    """``[fan_in, fan_out]``."""
    bias: Array
    """``[fan_out]``."""
    activation: Activation

    def apply(self, x: Array) -> Array:
        y: Array = x @ self.weight
        y += self.bias
        return self.activation(y)


@dataclass(frozen=True, eq=False)
class NoisyLayer:
    """A linear layer with factorised noise on its weights (Fortunato et al. 2018, section 3), then ``activation``.

    On a few rows it takes less to compute with the noise on input and output than to perturb the weights by it.
    """

    mean: Linear
    """What acts without noise."""
    deviation: Linear
    """By what the noise is multiplied, weight by weight."""
    noise_in: Array
    """``[fan_in]``, which its owner draws."""
    noise_out: Array
    """``[fan_out]``."""

    def apply(self, x: Array) -> Array:
        noise = (x * self.noise_in) @ self.deviation.weight
        noise += self.deviation.bias
        noise *= self.noise_out
        y: Array = x @ self.mean.weight
        y += self.mean.bias
        y += noise
        return self.mean.activation(y)


def forward(layers: Iterable[Layer], obs: Array) -> Array:
    """Return what ``layers`` compute (float32 ``[B, K]``) of observations ``[B, N]``."""
    x = obs.astype(np.float32, copy=False)
    for layer in layers:
        x = layer.apply(x)
    return x


def torso_activations(config: TorsoConfig) -> tuple[Activation, ...]:
    """Return the activation behind each layer of a torso for vectors."""
    return (
        *repeat(ACTIVATIONS[config.fcnet_activation], len(config.fcnet_hiddens)),
        *repeat(ACTIVATIONS[config.post_fcnet_activation], len(config.post_fcnet_hiddens)),
    )


def layers_of(weights: Mapping[str, Array], prefix: str, activations: Sequence[Activation]) -> Iterator[Linear]:
    """Yield the layers of an ``nn.Sequential`` of linear layers, each followed by its activation."""
    for index, activation in enumerate(activations):
        name = f"{prefix}.{2 * index}"
        yield Linear(weights[f"{name}.weight"].T.copy(order="C"), weights[f"{name}.bias"].copy(), activation)


def live_layers_of(weights: Mapping[str, Array], prefix: str, activations: Sequence[Activation]) -> Iterator[Linear]:
    """Yield what ``layers_of`` does, but of the weights where they are: who changes them changes the layers."""
    for index, activation in enumerate(activations):
        name = f"{prefix}.{2 * index}"
        yield Linear(weights[f"{name}.weight"].T, weights[f"{name}.bias"], activation)


def centered_bytes(obs: Array) -> Array:
    """Return (x - 128) / 128 of bytes x, float32."""
    return np.asarray((obs.astype(np.float32, copy=False) - np.float32(BYTE_CENTER)) / np.float32(BYTE_CENTER))


def with_centered_bytes(layer: Linear) -> Linear:
    """Return a layer that computes of bytes x what ``layer`` computes of (x - 128) / 128."""
    return Linear(layer.weight / BYTE_CENTER, layer.bias - layer.weight.sum(axis=0), layer.activation)


def side_by_side(a: Linear, b: Linear, share_input: bool) -> Linear:
    """Return two layers as one, which computes both outputs: of one input or, behind such a layer, of both halves."""
    bias = np.concatenate([a.bias, b.bias])
    if share_input:
        return Linear(np.concatenate([a.weight, b.weight], axis=1), bias, a.activation)
    zeros_a = np.zeros((len(a.weight), b.weight.shape[1]), a.weight.dtype)
    zeros_b = np.zeros((len(b.weight), a.weight.shape[1]), b.weight.dtype)
    return Linear(np.block([[a.weight, zeros_a], [zeros_b, b.weight]]), bias, a.activation)


def relu(x: Array) -> Array:
    """Return ``max(x, 0)``."""
    return np.maximum(x, 0, out=x)


def identity(x: Array) -> Array:
    """Return ``x``."""
    return x


def _tanh(x: Array) -> Array:
    tanh: Array = np.tanh(x, out=x)
    return tanh


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _swish(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) is infinite only where x / (1 + exp(-x)) is 0
        swish: Array = x / (1 + np.exp(-x))
    return swish


ACTIVATIONS: Mapping[str, Activation] = {
    "tanh": _tanh,
    "relu": relu,
    "elu": _elu,
    "swish": _swish,
    "linear": identity,
}
