"""The Q-network of fully connected layers in NumPy, for acting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from rlexp.models.network_config import QNetworkConfig
from rlexp.models.numpy_layers import (
    Linear,
    forward,
    identity,
    layers_of,
    relu,
    side_by_side,
    torso_activations,
    with_centered_bytes,
)
from rlexp.sample_batch import Array


class NumpyQNetwork:
    """Maps observations to the action values that a ``QNetwork`` of the same weights has for them, but for rounding.

    Both heads and the sum that dueling makes of them (Wang et al. 2016, equation 9) are linear maps side
    by side, so they are folded into one layer each: the heads cost no more calls than a plain one would.
    """

    def __init__(self, config: QNetworkConfig) -> None:
        """Take the shape of the network; raises ValueError for one that ``can_be`` denies."""
        if not can_be(config):
            raise ValueError("only fully connected networks without noise and atoms have a NumPy form")
        self._torso_activations = torso_activations(config.torso)
        self._num_head_layers = len(config.head.hiddens) + 1
        self._centers_bytes = config.sees_byte_vectors
        self._layers: tuple[Linear, ...]  # not before ``load``: without layers, an observation would be its own output

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of a ``QNetwork``, by the names of its ``state_dict``."""
        torso = layers_of(weights, "torso", self._torso_activations)
        head_activations = (*repeat(relu, self._num_head_layers - 1), identity)
        advantage = tuple(layers_of(weights, "advantage_head", head_activations))
        if "value_head.0.weight" in weights:
            advantage = tuple(_dueling(advantage, tuple(layers_of(weights, "value_head", head_activations))))
        first, *others = chain(torso, advantage)
        self._layers = (with_centered_bytes(first) if self._centers_bytes else first, *others)

    def outputs(self, obs: Array) -> Array:
        """Return the action values ``[B, A]`` (float32) of observations ``[B, N]``."""
        return forward(self._layers, obs)


def can_be(config: QNetworkConfig) -> bool:
    """Return whether a NumPy form exists: of our own layers for vectors, without noise, with the mean return alone."""
    sees_vectors = config.torso.custom is None and len(config.observation_shape) == 1
    return sees_vectors and not config.head.noisy and config.head.num_atoms == 1


def _dueling(advantage: Sequence[Linear], value: Sequence[Linear]) -> Iterator[Linear]:
    """Yield layers that compute ``V + A - mean A`` from the layers of both heads."""
    *hidden, (last_a, last_v) = zip(advantage, value, strict=True)
    for index, (a, v) in enumerate(hidden):
        yield side_by_side(a, v, share_input=index == 0)
    weight = last_a.weight - last_a.weight.mean(axis=1, keepdims=True)
    value_weight = np.broadcast_to(last_v.weight, (len(last_v.weight), weight.shape[1]))
    folded = np.concatenate([weight, value_weight]) if hidden else weight + value_weight
    yield Linear(folded, last_a.bias - last_a.bias.mean() + last_v.bias, last_a.activation)
