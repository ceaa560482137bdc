"""The policy of the DQN family: acts on a Q-network's values and explores by ε, softmax or noise.

Its network returns arrays, computed by either library. The categorical distributions of returns are at the end, in
NumPy; ``loss.py`` has them in torch. No torch is imported here, unless a network needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlexp.agents.dqn.exploration import Explorer, PolicyExploration
from rlexp.errors import NotFiniteError
from rlexp.models.dense import NumpyQNetwork
from rlexp.models.network_config import HeadConfig, QNetworkConfig, has_numpy_form, masked
from rlexp.policy import LiveWeights, Outputs, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch, new

Q_VALUES = "q_values"
"""The policy's output: action values ``[B, A]``, or their N quantiles or logits of N atoms ``[B, A, N]``."""


NEW_Q_VALUES = new(Q_VALUES)


class DQNPolicy:
    """Owns a copy of the Q-network on the CPU, and the random streams of its exploration."""

    def __init__(
        self,
        network: QNetworkConfig,
        exploration: PolicyExploration | None = None,
        worker_side_prioritization: bool = False,
        num_threads: int | None = None,
    ) -> None:
        """Act greedily if there is no ``exploration``.

        With ``worker_side_prioritization``, the worker computes each row's TD error before it is sent. ``num_threads``
        is for the forward passes of a worker in its own process; None leaves the process unchanged.
        """
        self._network = self._make_network(network, exploration, num_threads)
        self._masking = network.masking
        self._atoms = Atoms(network.head) if network.head.is_categorical else None
        self._has_quantiles = network.head.has_quantiles
        self._explorer = None if exploration is None else Explorer(exploration, network.num_actions)
        self._worker_side_prioritization = worker_side_prioritization
        # Priorities use the learner's weights, so not the values of perturbed ones.
        self._returns_outputs = worker_side_prioritization and not self._network.is_perturbed
        self.postprocess_reads_obs = worker_side_prioritization and (
            not self._returns_outputs or network.masking is not None
        )

    def _make_network(
        self, network: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None
    ) -> ActingNetwork:
        return make_acting_network(network, exploration, num_threads)

    def compute_actions(self, obs: Array) -> Array:
        actions: Array = self.action_values(obs).argmax(axis=1)
        return actions

    def action_values(self, obs: Array) -> Array:
        """Return the action values ``[B, A]`` of the network for ``obs [B, ...]``; raises NotFiniteError.

        The value of an action that is not allowed is MASKED.
        """
        return self._finite_values(self._network.outputs(obs), obs)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        if self._explorer is None:
            outputs = self._network.outputs(obs)
            return self._values(outputs, obs).argmax(axis=1), self.returned(outputs, obs)
        epsilons = self._explorer.epsilons(num_steps_sampled, len(obs))
        outputs = self._network.exploring_outputs(obs, epsilons, resetting)
        actions = self._explorer.choose(self._values(outputs, obs), epsilons, self._allowed(obs))
        return actions, self.returned(outputs, obs)

    def outputs(self, obs: Array) -> Outputs:
        return self.returned(self._network.outputs(obs), obs) if self._returns_outputs else {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add |TD errors| by the worker's own weights, as Ape-X's actors do (Horgan et al. 2018, section 3).

        They use the values with which the network acted, so they cost no forward pass. One of a row's two observations
        may have been evaluated with weights that are a fragment older.
        """
        if not self._worker_side_prioritization:
            return batch
        td_errors = self._td_errors(batch if Q_VALUES in batch else self._with_values(batch))
        kept = {name: column for name, column in batch.columns.items() if name not in {Q_VALUES, NEW_Q_VALUES}}
        return SampleBatch({**kept, TD_ERRORS: td_errors})

    def set_weights(self, weights: Weights) -> None:
        self._network.load(weights)

    def state(self) -> dict[str, Any]:
        explorer = None if self._explorer is None else self._explorer.state()
        return {"noise": self._network.noise_state(), "explorer": explorer}

    def load(self, state: Mapping[str, Any]) -> None:
        self._network.load_noise(state["noise"])
        if self._explorer is not None:
            self._explorer.load(state["explorer"])

    def _values(self, outputs: Array, obs: Array) -> Array:
        """Return the action values ``[B, A]`` of ``outputs`` for ``obs``, MASKED for actions that are not allowed."""
        values = self._means(outputs)
        return values if self._masking is None else self._masking.of_arrays(values, obs)

    def _means(self, outputs: Array) -> Array:
        """Return the action values ``[B, A]`` of ``outputs``, as if all actions were allowed."""
        if self._atoms is not None:
            return self._atoms.values(softmax(outputs))
        means: Array = outputs.mean(axis=2) if self._has_quantiles else outputs
        return means

    def _finite_values(self, outputs: Array, obs: Array) -> Array:
        """Return the ``_values``; raises NotFiniteError, as a NaN would otherwise become an action."""
        values = self._values(outputs, obs)
        if not np.isfinite(values).all():
            raise NotFiniteError("the network's outputs are NaN or infinite", "so are its weights, or an observation")
        return values

    def _allowed(self, obs: Array) -> Array | None:
        """Return whether each action is allowed ``[B, A]``; None without masks."""
        return None if self._masking is None else self._masking.allowed(obs)

    def _td_errors(self, batch: SampleBatch) -> Array:
        """Return first priorities ``[B]`` from Q_VALUES and NEW_Q_VALUES: |TD errors|, or cross-entropies."""
        taken, new_outputs = (batch[ACTIONS], batch[REWARDS], batch[DISCOUNTS]), batch[NEW_Q_VALUES]
        allowed = None if self._masking is None else self._masking.allowed(batch[NEW_OBS])
        if self._atoms is not None:
            return self._atoms.cross_entropies(batch[Q_VALUES], *taken, new_outputs, allowed)
        actions, rewards, discounts = taken
        q_tm1 = np.take_along_axis(self._means(batch[Q_VALUES]), actions[:, None], axis=1)[:, 0]
        q_t = self._means(new_outputs)
        q_t = q_t if allowed is None else masked(q_t, allowed)
        errors: Array = np.abs(rewards + discounts * q_t.max(axis=1, initial=-np.inf) - q_tm1)
        return errors

    def returned(self, outputs: Array, obs: Array) -> Outputs:
        """Return the policy's outputs for Q_VALUES that the network computed for ``obs``."""
        return {Q_VALUES: outputs} if self._returns_outputs else {}

    def _with_values(self, batch: SampleBatch) -> SampleBatch:
        """Return ``batch`` with the action values of the unperturbed network."""
        values, new_values = (self._network.outputs(batch[name]) for name in (OBS, NEW_OBS))
        return batch.with_columns(**{Q_VALUES: values, NEW_Q_VALUES: new_values})


class ActingNetwork(Protocol):
    """A copy of the Q-network that acts on the CPU; owned by a policy."""

    is_perturbed: bool
    """Whether ``exploring_outputs`` use other weights than the learner's."""

    def load(self, weights: Weights) -> None:
        """Act with a copy of these weights from now on."""

    def outputs(self, obs: Array) -> Array:
        """Return the outputs of the heads for ``obs [B, ...]``: Q_VALUES."""

    def exploring_outputs(self, obs: Array, epsilons: Array, resetting: Array) -> Array:
        """Return the outputs for exploration, perturbed or not; envs ``resetting [B]`` start an episode.

        ``epsilons [B]`` say how much the perturbed actions should differ from greedy ones.
        """

    def noise_state(self) -> dict[str, Any]:
        """Return the noise of its exploration, by name: arrays, and values for JSON."""

    def load_noise(self, state: Mapping[str, Any]) -> None:
        """Continue with the noise that ``noise_state`` returned; its weights are loaded already."""


def make_acting_network(
    config: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None
) -> ActingNetwork:
    """Return the fastest acting network: in NumPy if possible, so that the process needs no torch.

    ``num_threads`` are for its forward passes, in a process of its own; None leaves the process unchanged. More than
    one helps only networks that run in torch.
    """
    is_perturbed = exploration is not None and exploration.parameter_noise_stddev is not None
    if has_numpy_form(config) and not is_perturbed and num_threads in {None, 1}:
        is_noisy = exploration is not None and config.head.noisy
        return NumpyActingNetwork(config, exploration.seed_of("noise") if exploration and is_noisy else None)
    from rlexp.agents.dqn.torch_policy import TorchActingNetwork

    return TorchActingNetwork(config, exploration, num_threads)


class NumpyActingNetwork:
    """An ActingNetwork of fully connected layers, without torch; noisy while it explores."""

    is_perturbed = False

    def __init__(self, config: QNetworkConfig, noise_seed: int | None = None) -> None:
        """Draw the noise of noisy layers from ``noise_seed``; None: no noise."""
        self._network = NumpyQNetwork(config, is_noisy=noise_seed is not None)
        self._noise_rng = None if noise_seed is None else np.random.default_rng(noise_seed)
        self._live: LiveWeights | None = None

    def load(self, weights: Weights) -> None:
        """Act with a copy of ``weights``, or in place with the weights of a learner in this thread."""
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

    def noise_state(self) -> dict[str, Any]:
        return {} if self._noise_rng is None else {"rng": self._noise_rng.bit_generator.state}

    def load_noise(self, state: Mapping[str, Any]) -> None:
        if self._noise_rng is not None and "rng" in state:  # older checkpoints have the state of torch's generator
            self._noise_rng.bit_generator.state = state["rng"]


class Atoms:
    """The values on which the distributions of a network lie; everything is float32."""

    support: Array
    """``[K]``, evenly spaced."""

    def __init__(self, head: HeadConfig) -> None:
        self.support = np.linspace(head.v_min, head.v_max, head.num_atoms, dtype=np.float32)
        self._last = np.float32(head.num_atoms - 1)
        self._lowest = np.float32(head.v_min)
        self._per_value = np.float32((head.num_atoms - 1) / (head.v_max - head.v_min)) if head.num_atoms > 1 else 0

    def values(self, probabilities: Array) -> Array:
        """Return the means ``[...]`` of distributions ``[..., K]``."""
        # As one matrix, since NumPy would multiply each of a stack of small matrices by itself.
        values: Array = probabilities.reshape(-1, len(self.support)) @ self.support
        return values.reshape(probabilities.shape[:-1])

    def projected(self, p_t: Array, r_t: Array, discount_t: Array) -> Array:
        """Return the distributions ``[B, K]`` of ``r_t + discount_t z``, z ~ ``p_t [B, K]``, on the support.

        Each shifted atom divides its probability between its two neighbours there (Bellemare et al. 2017, eq. 7).
        """
        position = r_t[:, None] + discount_t[:, None] * self.support
        position -= self._lowest
        position *= self._per_value
        position = np.fmin(np.fmax(position, 0), self._last)  # which remove NaN, as NaN would not be an index
        lower = np.minimum(np.floor(position), self._last - 1)
        position -= lower
        upper_share = position * p_t
        slots = lower.astype(np.intp)
        slots += np.arange(0, p_t.size, p_t.shape[1])[:, None]
        flat = slots.ravel()
        projected = np.bincount(flat, (p_t - upper_share).ravel(), p_t.size)
        flat += 1
        projected += np.bincount(flat, upper_share.ravel(), p_t.size)
        return projected.astype(np.float32).reshape(p_t.shape)

    def cross_entropies(
        self,
        logits_tm1: Array,
        a_tm1: Array,
        r_t: Array,
        discount_t: Array,
        logits_t: Array,
        allowed_t: Array | None = None,
    ) -> Array:
        """Return the cross-entropy ``[B]`` between each row's projected target distribution and the predicted one.

        ``logits_* [B, A, K]``; the next action is the best one of ``allowed_t [B, A]`` by ``logits_t`` themselves.
        """
        rows = np.arange(len(a_tm1))
        p_t = softmax(logits_t)
        q_t = self.values(p_t)
        chosen = p_t[rows, (q_t if allowed_t is None else masked(q_t, allowed_t)).argmax(axis=1)]
        target = self.projected(chosen, r_t, discount_t)
        return cross_entropies(target, log_softmax(logits_tm1[rows, a_tm1]))


def shifted_exponentials(logits: Array) -> tuple[Array, Array, Array]:
    """Return ``logits [..., K]`` minus each row's maximum, their exponentials, and the sums ``[..., 1]`` of these.

    The softmax is the exponentials divided by the sums. Its logarithm is the shifted logits minus the logarithms of the
    sums.
    """
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return shifted, exponentials, np.add.reduce(exponentials, axis=-1, keepdims=True)


def softmax(logits: Array) -> Array:
    """Return the probabilities ``[..., K]`` of ``logits [..., K]``."""
    _, exponentials, sums = shifted_exponentials(logits)
    return np.asarray(exponentials / sums)


def log_softmax(logits: Array) -> Array:
    """Return the logarithms ``[..., K]`` of the probabilities of ``logits [..., K]``."""
    shifted, _, sums = shifted_exponentials(logits)
    return np.asarray(shifted - np.log(sums))


def cross_entropies(target: Array, log_p: Array) -> Array:
    """Return ``-sum target log p`` ``[B]`` of distributions ``[B, K]``."""
    entropies: Array = -np.einsum("bk,bk->b", target, log_p)
    return entropies
