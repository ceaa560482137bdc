"""Actor-critic networks in NumPy, for acting: with a memory, or without."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlexp.models.dense import (
    Linear,
    centered_bytes,
    forward,
    layer_of,
    layers_of,
    side_by_side,
    with_centered_bytes,
)
from rlexp.models.memory import NumpyLSTM
from rlexp.models.network_config import ActorCriticConfig, has_numpy_form
from rlexp.sample_batch import Array


class NumpyActorCritic:
    """Maps observations to the outputs of an ``ActorCritic`` of the same weights, except for rounding.

    Both torsos are computed side by side, so that they take no more calls than one.
    """

    def __init__(self, config: ActorCriticConfig) -> None:
        """Initialise from the shape of the network; raises ValueError without ``has_numpy_form``."""
        if not has_numpy_form(config):
            raise ValueError("only fully connected networks have a NumPy form")
        self._config = config
        self._layers: tuple[Linear, ...]  # not before ``load``
        self._log_std: Array | None = None

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of an ``ActorCritic``, by the names of its ``state_dict``."""
        activations = self._config.torso.activations
        layers = [*layers_of(weights, "policy_torso", activations)]
        policy, value = (layer_of(weights, name, "linear") for name in ("policy_head", "value_head"))
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
        return self._finished(forward(self._layers, self._unmasked(obs)), obs)

    def _unmasked(self, obs: Array) -> Array:
        masking = self._config.masking
        return obs if masking is None else masking.observations(obs)

    def _finished(self, both: Array, obs: Array) -> tuple[Array, Array]:
        """Return the results of ``outputs`` from both heads' ``[B, K + 1]``."""
        masking = self._config.masking
        inputs, values = both[:, :-1], both[:, -1]
        if masking is not None:
            inputs = masking.of_arrays(inputs, obs)
        if self._log_std is not None:
            log_std = np.broadcast_to(self._log_std, (len(inputs), len(self._log_std)))
            inputs = np.concatenate([inputs, log_std], axis=1)
        return inputs, values


class NumpyRecurrentActorCritic(NumpyActorCritic):
    """A NumpyActorCritic with an LSTM between its torso and its heads."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of an ``ActorCritic`` with a memory."""
        self._layers = tuple(layers_of(weights, "policy_torso", self._config.torso.activations))
        self._lstm = NumpyLSTM(weights)
        policy, value = (layer_of(weights, name, "linear") for name in ("policy_head", "value_head"))
        self._heads = side_by_side(policy, value, share_input=True)
        self._log_std = weights["log_std"].copy() if self._config.num_free_log_std else None

    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array, Array]:
        """Return the ``outputs`` of ``obs [M, N]``, and the states ``[M, 2 H]`` after them; see ``NumpyLSTM.step``."""
        seen = self._unmasked(obs)
        features = forward(self._layers, centered_bytes(seen) if self._config.sees_byte_vectors else seen)
        remembered, following = self._lstm.step(features, previous, states)
        return *self._finished(self._heads.apply(remembered), obs), following
