"""What a policy asks of a Q-network: arrays in, arrays out, whichever library computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlexp.agents.dqn.atoms import Atoms, softmax
from rlexp.agents.dqn.exploration import PolicyExploration
from rlexp.models import QNetworkConfig
from rlexp.models.numpy_q_network import NumpyQNetwork, can_be
from rlexp.policy import LiveWeights, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, REWARDS, Array, SampleBatch, new

Q_VALUES = "q_values"
"""The policy's output: action values ``[B, A]``, or logits ``[B, A, N]`` of their N atoms."""
NEW_Q_VALUES = new(Q_VALUES)


class ActingNetwork(Protocol):
    """A copy of the Q-network that acts, on the CPU; a policy owns it."""

    is_perturbed: bool
    """Whether ``exploring_outputs`` are those of other weights than the learner's."""

    def load(self, weights: Weights) -> None:
        """Act with a copy of these weights from now on."""
        ...

    def outputs(self, obs: Array) -> Array:
        """Return what the heads compute for ``obs [B, ...]``: Q_VALUES."""
        ...

    def exploring_outputs(self, obs: Array, epsilons: Array, resetting: Array) -> Array:
        """Return the outputs to explore by, perturbed or not; envs ``resetting [B]`` start an episode.

        ``epsilons [B]`` say how much the perturbed actions should differ from greedy ones.
        """
        ...

    def values(self, outputs: Array) -> Array:
        """Return the action values ``[B, A]`` of outputs."""
        ...

    def td_errors(self, batch: SampleBatch) -> Array:
        """Return first priorities ``[B]`` from Q_VALUES and NEW_Q_VALUES: |TD errors|, or cross-entropies."""
        ...

    def noise_state(self) -> dict[str, Any]:
        """Return the noise that it explores with: arrays, and values for JSON, by name."""
        ...

    def load_noise(self, state: Mapping[str, Any]) -> None:
        """Continue with the noise that ``noise_state`` returned; it has its weights already."""
        ...


class NumpyActingNetwork:
    """An ActingNetwork of fully connected layers, which needs no torch in its process; noisy while it explores."""

    is_perturbed = False

    def __init__(self, config: QNetworkConfig, noise_seed: int | None = None) -> None:
        """Draw the noise of noisy layers from ``noise_seed``; without it, they have none."""
        self._network = NumpyQNetwork(config, is_noisy=noise_seed is not None)
        self._noise_rng = None if noise_seed is None else np.random.default_rng(noise_seed)
        self._atoms = None if config.head.num_atoms == 1 else Atoms(config.head)
        self._live: LiveWeights | None = None

    def load(self, weights: Weights) -> None:
        """Act with a copy of ``weights``, or with those of a learner in this thread where they are."""
        if not isinstance(weights, LiveWeights):
            self._live = None
            self._network.load(weights)
        elif weights is not self._live:
            self._live = weights
            self._network.share(weights)

    def outputs(self, obs: Array) -> Array:
        if self._noise_rng is not None:
            self._network.resample_noise(self._noise_rng)
        return self._network.outputs(obs)

    def exploring_outputs(self, obs: Array, epsilons: Array, resetting: Array) -> Array:
        return self.outputs(obs)

    def values(self, outputs: Array) -> Array:
        return outputs if self._atoms is None else self._atoms.values(softmax(outputs))

    def td_errors(self, batch: SampleBatch) -> Array:
        if self._atoms is None:
            return absolute_td_errors(batch)
        rows = batch[ACTIONS], batch[REWARDS], batch[DISCOUNTS]
        return self._atoms.cross_entropies(batch[Q_VALUES], *rows, batch[NEW_Q_VALUES])

    def noise_state(self) -> dict[str, Any]:
        return {} if self._noise_rng is None else {"rng": self._noise_rng.bit_generator.state}

    def load_noise(self, state: Mapping[str, Any]) -> None:
        if self._noise_rng is not None and "rng" in state:  # older checkpoints have a state of torch's generator
            self._noise_rng.bit_generator.state = state["rng"]


def absolute_td_errors(batch: SampleBatch) -> Array:
    """Return ``|r + discount max_a q_new - q[action]|``, ``[B]``, of Q_VALUES and NEW_Q_VALUES ``[B, A]``."""
    q_tm1 = np.take_along_axis(batch[Q_VALUES], batch[ACTIONS][:, None], axis=1)[:, 0]
    target = batch[REWARDS] + batch[DISCOUNTS] * batch[NEW_Q_VALUES].max(axis=1, initial=-np.inf)
    errors: Array = np.abs(target - q_tm1)
    return errors


def make_acting_network(
    config: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None
) -> ActingNetwork:
    """Return the network that acts fastest: in NumPy where it can be, which spares the process torch as well.

    ``num_threads`` is what its forward passes may use, in a process of its own; None leaves the process as
    it is. More than one is worth it for networks that only torch can spread over them.
    """
    is_perturbed = exploration is not None and exploration.parameter_noise_stddev is not None
    if can_be(config) and not is_perturbed and num_threads in {None, 1}:
        is_noisy = exploration is not None and config.head.noisy
        return NumpyActingNetwork(config, exploration.seed_of("noise") if exploration and is_noisy else None)
    from rlexp.agents.dqn.torch_acting_network import TorchActingNetwork

    return TorchActingNetwork(config, exploration, num_threads)
