"""The policies of ES and ARS: deterministic ones, and the changed ones that a worker plays, one for each env.

A direction, in which weights are changed, is played twice, with its noise added and taken away. Its seed is sent
instead of the noise. Checkpoints are played by ``EvolutionPolicies``. No torch is imported here, unless a network needs
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from rlexp.agents.ddpg.policy import NetworkPolicy, make_acting_network, trained_names
from rlexp.agents.policies import Exportable, Policies
from rlexp.config.keys.evolution import EvolutionKeys
from rlexp.envs.spaces import is_byte_vector
from rlexp.models.action_distributions import CategoricalActions, GaussianActions, PlainActions, actions_of
from rlexp.models.network_config import LayersConfig, PolicyAndCriticsConfig, torso_config_of
from rlexp.policy import Outputs, Policy, Weights
from rlexp.sample_batch import Array, SampleBatch

SEEDS: Final = "seeds"
"""The column of each direction's seed ``[B]``."""
RETURNS: Final = "returns"
"""The column of its two returns ``[B, 2]``: with the noise added, and taken away."""


def noise(seed: int, size: int) -> Array:
    """Return ``size`` numbers of a standard normal distribution; the same for a seed with any process's NumPy."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def centered_ranks(returns: Array) -> Array:
    """Return the ranks of ``returns [...]``, scaled to -0.5 .. 0.5; equal returns share their mean rank.

    Salimans et al. 2017, section 2.1. Without shared ranks, episodes that all reach an env's limit would be ordered by
    chance, and the weights would move by it.

    >>> centered_ranks(np.array([3.0, 1.0, 1.0, 9.0, 4.0])).tolist()
    [0.0, -0.375, -0.375, 0.5, 0.25]
    """
    values, places, counts = np.unique(returns, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    ranks: Array = means[places].reshape(returns.shape) / max(returns.size - 1, 1) - 0.5
    return ranks if len(values) > 1 else np.zeros(returns.shape)


def weights_of_ranks(returns: Array) -> Array:
    """Return the weight of each direction's noise ``[B]`` in ES, from ``returns [B, 2]``."""
    ranks = centered_ranks(returns)
    weights: Array = (ranks[:, 0] - ranks[:, 1]) / returns.size
    return weights


def weights_of_best(returns: Array, num_used: int) -> Array:
    """Return the weight of each direction's noise ``[B]`` in ARS, from ``returns [B, 2]`` (Mania et al. 2018, V1-t).

    The ``num_used`` directions with the best better return are used; others weigh 0. Differences are divided by the
    standard deviation of all returns that are used.
    """
    best = np.argsort(-returns.max(axis=1), kind="stable")[:num_used]
    deviation = returns[best].std()
    weights = np.zeros(len(returns))
    if deviation > 0:
        weights[best] = (returns[best, 0] - returns[best, 1]) / (len(best) * deviation)
    return weights


def added_up(seeds: Array, weights: Array, size: int) -> Array:
    """Return the sum ``[size]`` of the noises of ``seeds [B]``, each times its weight ``[B]``.

    Only one noise is in memory at a time.
    """
    total = np.zeros(size, np.float32)
    for seed, weight in zip(seeds.tolist(), weights.tolist(), strict=True):
        if weight:
            total += np.float32(weight) * noise(seed, size)
    return total


_NO_LAYERS = LayersConfig((), "linear")


@dataclass(frozen=True)
class Rollout:
    """The weights of one episode: the learner's, changed by the noise of a seed."""

    seed: int
    sign: int
    """1: the noise is added, -1: it is taken away, 0: there is none."""


@dataclass(frozen=True)
class RolloutPlan:
    """What a worker plays in each call, and with how much noise."""

    num_directions: int
    eval_prob: float
    """Episodes without noise for each direction, on average."""
    offset: float
    """Number that is taken from each reward."""
    noise_stdev: float
    """Standard deviation of the noise on the weights."""
    action_noise_std: float
    """Standard deviation of the noise on continuous actions."""


class ChangedPolicies:
    """A Policy for each of M envs, with weights that change for each episode; owned by a worker."""

    postprocess_reads_obs = False

    def __init__(
        self,
        network: PolicyAndCriticsConfig,
        actions: CategoricalActions | PlainActions,
        plan: RolloutPlan,
        num_envs: int,
        seed: int,
        num_threads: int | None = None,
    ) -> None:
        """Draw noise on actions from ``seed``; ``num_threads`` are for the forward passes of a process of its own."""
        self._networks = [make_acting_network(network, num_threads) for _ in range(num_envs)]
        self._trained = trained_names(network)
        self._actions, self.plan = actions, plan
        self._noisy = np.zeros(num_envs, bool)
        self._rng = np.random.default_rng(seed)
        self._weights: Weights = {}

    def begin(self, env: int, rollout: Rollout) -> None:
        """Let ``env`` play an episode with the newest weights, changed as ``rollout`` says."""
        self._networks[env].load(self._changed(rollout) if rollout.sign else self._weights)
        self._noisy[env] = bool(rollout.sign)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        return self.compute_actions(obs), {}

    def compute_actions(self, obs: Array) -> Array:
        rows = len(obs) // len(self._networks)  # of an env of several agents, one for each
        parts = [network.inputs(obs[env * rows : (env + 1) * rows]) for env, network in enumerate(self._networks)]
        inputs = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self.plan.action_noise_std and isinstance(self._actions, PlainActions):
            drawn = self._rng.standard_normal(inputs.shape, np.float32)
            inputs = inputs + np.float32(self.plan.action_noise_std) * self._noisy.repeat(rows)[:, None] * drawn
        return self._actions.most_likely(inputs)

    def outputs(self, obs: Array) -> Outputs:
        return {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        """Take the weights from which the next episodes are changed."""
        self._weights = weights
        for network in self._networks:
            network.load(weights)

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]

    def _changed(self, rollout: Rollout) -> Weights:
        """Return the newest weights with the noise of a rollout, parameter after parameter."""
        names = [name for name in self._weights if self._trained is None or name in self._trained]
        numbers = noise(rollout.seed, sum(self._weights[name].size for name in names))
        numbers *= np.float32(rollout.sign * self.plan.noise_stdev)
        changed, start = dict(self._weights), 0
        for name in names:
            weight = self._weights[name]
            changed[name] = weight + numbers[start : start + weight.size].reshape(weight.shape)
            start += weight.size
        return changed


class EvolutionPolicies(Policies[EvolutionKeys]):
    """The policies of ES and ARS."""

    @cached_property
    def actions(self) -> CategoricalActions | PlainActions:
        """What the outputs of the network mean: the best of each finite set is taken, numbers as they are."""
        actions = actions_of(self.action_space)
        return PlainActions(actions.shape, actions.dtype) if isinstance(actions, GaussianActions) else actions

    @cached_property
    def network(self) -> PolicyAndCriticsConfig:
        """The shape of the network for the (checked) spaces; there are no critics."""
        config, observations = self.config, self.seen_space
        assert observations.shape is not None
        return PolicyAndCriticsConfig(
            observation_shape=observations.shape,
            num_inputs=self.actions.num_inputs,
            torso=torso_config_of(config, observations, self.modules),
            policy=_NO_LAYERS,
            critic=_NO_LAYERS,
            num_critics=0,
            num_numbers=0,
            sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observations),
            masking=self.masking,
        )

    def make_policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.network, self.actions)

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        from rlexp.agents.ddpg.torch_policy import exportable_policy_network  # it loads torch

        assert isinstance(policy, NetworkPolicy)
        return exportable_policy_network(self.network, self.actions, policy, weights)
