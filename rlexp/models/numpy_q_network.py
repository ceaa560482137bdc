"""The Q-network of fully connected layers in NumPy, for acting: on a few rows, torch would be mostly overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from rlexp.models.network_config import BYTE_CENTER, QNetworkConfig
from rlexp.sample_batch import Array

Activation = Callable[[Array], Array]
"""Maps an array ``[B, N]``, which it may overwrite, to one of the same shape."""


@dataclass(frozen=True)
class Linear:
    """A layer ``x @ weight + bias``, then ``activation``."""

    weight: Array
    """``[fan_in, fan_out]``, contiguous."""
    bias: Array
    """``[fan_out]``."""
    activation: Activation


class NumpyQNetwork:
    """Maps observations to the action values that a ``QNetwork`` of the same weights has for them, but for rounding.

    Both heads and the sum that dueling makes of them (Wang et al. 2016, equation 9) are linear maps side
    by side, so they are folded into one layer each: the heads cost no more calls than a plain one would.
    """

    def __init__(self, config: QNetworkConfig) -> None:
        """Take the shape of the network; raises ValueError for one that ``can_be`` denies."""
        if not can_be(config):
            raise ValueError("only fully connected networks without noise and atoms have a NumPy form")
        torso = config.torso
        self._torso_activations = (
            *repeat(ACTIVATIONS[torso.fcnet_activation], len(torso.fcnet_hiddens)),
            *repeat(ACTIVATIONS[torso.post_fcnet_activation], len(torso.post_fcnet_hiddens)),
        )
        self._num_head_layers = len(config.head.hiddens) + 1
        self._centers_bytes = config.sees_byte_vectors
        self._layers: tuple[Linear, ...] = ()

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of a ``QNetwork``, by the names of its ``state_dict``."""
        torso = _layers(weights, "torso", self._torso_activations)
        head_activations = (*repeat(_relu, self._num_head_layers - 1), _identity)
        advantage = tuple(_layers(weights, "advantage_head", head_activations))
        if "value_head.0.weight" in weights:
            advantage = tuple(_dueling(advantage, tuple(_layers(weights, "value_head", head_activations))))
        first, *others = chain(torso, advantage)
        self._layers = (_with_centered_bytes(first) if self._centers_bytes else first, *others)

    def outputs(self, obs: Array) -> Array:
        """Return the action values ``[B, A]`` (float32) of observations ``[B, N]``."""
        x = obs.astype(np.float32, copy=False)
        for layer in self._layers:
            x = x @ layer.weight
            x += layer.bias
            x = layer.activation(x)
        return x


def can_be(config: QNetworkConfig) -> bool:
    """Return whether a NumPy form of a network exists: for vectors, without noise, with the mean return alone."""
    return len(config.observation_shape) == 1 and not config.head.noisy and config.head.num_atoms == 1


def _relu(x: Array) -> Array:
    return np.maximum(x, 0, out=x)


def _identity(x: Array) -> Array:
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
    "relu": _relu,
    "elu": _elu,
    "swish": _swish,
    "linear": _identity,
}


def _layers(weights: Mapping[str, Array], prefix: str, activations: Sequence[Activation]) -> Iterator[Linear]:
    """Yield the layers of an ``nn.Sequential`` of linear layers, each followed by its activation."""
    for index, activation in enumerate(activations):
        name = f"{prefix}.{2 * index}"
        yield Linear(weights[f"{name}.weight"].T.copy(order="C"), weights[f"{name}.bias"].copy(), activation)


def _with_centered_bytes(layer: Linear) -> Linear:
    """Return a layer that computes of bytes x what ``layer`` computes of (x - 128) / 128."""
    return Linear(layer.weight / BYTE_CENTER, layer.bias - layer.weight.sum(axis=0), layer.activation)


def _dueling(advantage: Sequence[Linear], value: Sequence[Linear]) -> Iterator[Linear]:
    """Yield layers that compute ``V + A - mean A`` from the layers of both heads."""
    *hidden, (last_a, last_v) = zip(advantage, value, strict=True)
    for index, (a, v) in enumerate(hidden):
        yield Linear(_side_by_side(a.weight, v.weight, index == 0), np.concatenate([a.bias, v.bias]), a.activation)
    weight = last_a.weight - last_a.weight.mean(axis=1, keepdims=True)
    value_weight = np.broadcast_to(last_v.weight, (len(last_v.weight), weight.shape[1]))
    folded = np.concatenate([weight, value_weight]) if hidden else weight + value_weight
    yield Linear(folded, last_a.bias - last_a.bias.mean() + last_v.bias, last_a.activation)


def _side_by_side(a: Array, v: Array, share_input: bool) -> Array:
    """Return the weights of both heads as one layer, which sees one input or, behind the first layer, both halves."""
    if share_input:
        return np.concatenate([a, v], axis=1)
    zeros_a, zeros_v = np.zeros((len(a), v.shape[1]), a.dtype), np.zeros((len(v), a.shape[1]), v.dtype)
    return np.block([[a, zeros_a], [zeros_v, v]])
