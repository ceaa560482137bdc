"""A small, fully connected Q-network in NumPy, in the memory of the torch network, and its gradient by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlexp.models.network_config import QNetworkConfig
from rlexp.models.noisy_gradients import NoisyWeights
from rlexp.models.numpy_gradients import SLOPES, DenseLayer, DenseLayers
from rlexp.models.numpy_layers import centered_bytes
from rlexp.models.numpy_q_network import can_be
from rlexp.sample_batch import Array

Noise = Mapping[str, tuple[Array, Array]]
"""The noise of input and output of each noisy layer, by the layer's name."""


def is_dense(config: QNetworkConfig) -> bool:
    """Return whether a network has fully connected layers only, whose slopes are known."""
    torso = config.torso
    activations = {
        *((torso.fcnet_activation,) if torso.fcnet_hiddens else ()),
        *((torso.post_fcnet_activation,) if torso.post_fcnet_hiddens else ()),
    }
    return can_be(config) and activations <= SLOPES.keys()


@dataclass(frozen=True, eq=False)
class Passed:
    """What a forward pass leaves for the backward one."""

    torso: list[Array]
    advantage: list[Array]
    value: list[Array] | None
    outputs: Array
    """Values of actions, or logits of their atoms, ``[B, A, K]``."""

    def first(self, rows: int) -> Passed:
        """Return what was passed by the first ``rows``."""
        value = None if self.value is None else [each[:rows] for each in self.value]
        torso, advantage = [each[:rows] for each in self.torso], [each[:rows] for each in self.advantage]
        return Passed(torso, advantage, value, self.outputs[:rows])


class DenseNetwork:
    """The layers of a ``QNetwork``, in its own memory."""

    def __init__(
        self, config: QNetworkConfig, weights: Mapping[str, Array], gradients: Mapping[str, Array], noise: Noise
    ) -> None:
        """Read ``weights`` and ``noise`` where the learner changes them, and write to ``gradients``."""
        torso = config.torso
        of_torso = [torso.fcnet_activation] * len(torso.fcnet_hiddens)
        of_torso += [torso.post_fcnet_activation] * len(torso.post_fcnet_hiddens)
        of_head = [*("relu" for _ in config.head.hiddens), "linear"]
        self._gradients = gradients
        self._noisy = {name: NoisyWeights(name, weights, *each) for name, each in noise.items()}
        self._torso = self._layers(weights, "torso", of_torso)
        self._advantage = self._layers(weights, "advantage_head", of_head)
        self._value = self._layers(weights, "value_head", of_head) if config.head.dueling else None
        self._has_torso = bool(of_torso)
        self._shape = (config.num_actions, config.head.num_atoms)
        self._centers_bytes = config.sees_byte_vectors

    def forward(self, obs: Array) -> Passed:
        """Return the outputs of ``obs [B, N]``, with the noise as it is now, and what ``backward`` needs."""
        for layer in self._noisy.values():
            layer.perturb()
        torso = self._torso.forward(self._seen(obs))
        advantage = self._advantage.forward(torso[-1])
        per_action = advantage[-1].reshape(-1, *self._shape)
        if self._value is None:
            return Passed(torso, advantage, None, per_action)
        value = self._value.forward(torso[-1])
        level = value[-1] - np.add.reduce(per_action, axis=1) / np.float32(self._shape[0])
        return Passed(torso, advantage, value, per_action + level[:, None])

    def backward(self, passed: Passed, gradient: Array) -> None:
        """Write the gradient of all parameters, where ``gradient [B, A, K]`` is that of the outputs."""
        rows = len(gradient)
        if self._value is None or passed.value is None:
            features = self._advantage.backward(passed.advantage, gradient.reshape(rows, -1), self._has_torso)
        else:
            of_value = np.add.reduce(gradient, axis=1)
            of_advantage = gradient - (of_value / np.float32(self._shape[0]))[:, None]
            features = self._advantage.backward(passed.advantage, of_advantage.reshape(rows, -1), self._has_torso)
            more = self._value.backward(passed.value, of_value, self._has_torso)
            if self._has_torso:
                features += more
        self._torso.backward(passed.torso, features, False)
        for name, layer in self._noisy.items():
            layer.write_gradient_of_sigma(name, self._gradients)

    def _seen(self, obs: Array) -> Array:
        return centered_bytes(obs) if self._centers_bytes else obs.astype(np.float32, copy=False)

    def _layers(self, weights: Mapping[str, Array], prefix: str, activations: list[str]) -> DenseLayers:
        names = [f"{prefix}.{2 * index}" for index in range(len(activations))]
        return DenseLayers(
            [self._layer(weights, name, activation) for name, activation in zip(names, activations, strict=True)]
        )

    def _layer(self, weights: Mapping[str, Array], name: str, activation: str) -> DenseLayer:
        noisy, gradients = self._noisy.get(name), self._gradients
        if noisy is None:
            weight, bias, suffix = weights[f"{name}.weight"], weights[f"{name}.bias"], ""
        else:
            weight, bias, suffix = noisy.weight, noisy.bias, "_mu"
        return DenseLayer(
            weight, bias, gradients[f"{name}.weight{suffix}"], gradients[f"{name}.bias{suffix}"], activation
        )
