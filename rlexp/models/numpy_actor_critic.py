"""The actor-critic network of fully connected layers in NumPy, for acting."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.numpy_layers import (
    Linear,
    forward,
    identity,
    layers_of,
    side_by_side,
    torso_activations,
    with_centered_bytes,
)
from rlexp.sample_batch import Array


class NumpyActorCritic:
    """Maps observations to what an ``ActorCritic`` of the same weights computes for them, but for rounding.

    Both torsos are computed side by side, so that they take no more calls than one.
    """

    def __init__(self, config: ActorCriticConfig) -> None:
        """Take the shape of the network; raises ValueError for one that ``can_be`` denies."""
        if not can_be(config):
            raise ValueError("only fully connected networks have a NumPy form")
        self._config = config
        self._layers: tuple[Linear, ...]  # not before ``load``
        self._log_std: Array | None = None

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of an ``ActorCritic``, by the names of its ``state_dict``."""
        activations = torso_activations(self._config.torso)
        layers = [*layers_of(weights, "policy_torso", activations)]
        policy, value = (_head(weights, name) for name in ("policy_head", "value_head"))
        if self._config.shares_torso:
            layers.append(side_by_side(policy, value, share_input=True))
        else:
            layers = [
                side_by_side(a, b, share_input=index == 0)
                for index, (a, b) in enumerate(
                    zip([*layers, policy], [*layers_of(weights, "value_torso", activations), value], strict=True)
                )
            ]
        first, *others = layers
        self._layers = (with_centered_bytes(first) if self._config.sees_byte_vectors else first, *others)
        self._log_std = weights["log_std"].copy() if self._config.num_free_log_std else None

    def outputs(self, obs: Array) -> tuple[Array, Array]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]`` (float32) of ``obs [B, N]``."""
        both = forward(self._layers, obs)
        inputs, values = both[:, :-1], both[:, -1]
        if self._log_std is not None:
            log_std = np.broadcast_to(self._log_std, (len(inputs), len(self._log_std)))
            inputs = np.concatenate([inputs, log_std], axis=1)
        return inputs, values


def can_be(config: ActorCriticConfig) -> bool:
    """Return whether a NumPy form of a network exists: of our own layers for vectors."""
    return config.torso.custom is None and len(config.observation_shape) == 1


def _head(weights: Mapping[str, Array], name: str) -> Linear:
    return Linear(weights[f"{name}.weight"].T.copy(order="C"), weights[f"{name}.bias"].copy(), identity)
