"""The policies of DDPG, TD3 and SAC: a network computes the inputs of an action, and an explorer chooses by them.

Checkpoints are played by ``PolicyNetworkPolicies``. No torch is imported here, unless a network needs it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np

from rlexp.agents.ddpg.exploration import ActionExplorer, Exploration, NoiseExploration, PolicyActions
from rlexp.agents.dqn.exploration import epsilon_ladder
from rlexp.agents.dqn.players import ladder_places
from rlexp.agents.policies import Exportable, Policies, SeatPlayers
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.ddpg import CriticKeys, DDPGConfig
from rlexp.envs.spaces import is_byte_vector, is_continuous
from rlexp.errors import NotFiniteError, UsageError
from rlexp.models.action_distributions import SquashedActions
from rlexp.models.dense import Linear, centered_bytes, forward, layers_of
from rlexp.models.network_config import (
    LayersConfig,
    PolicyAndCriticsConfig,
    Shapes,
    has_numpy_form,
    shapes_of_layers,
    torso_config_of,
    torso_sizes,
)
from rlexp.policy import LiveWeights, Outputs, Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.folds import NStep
from rlexp.sample_batch import Array, SampleBatch
from rlexp.schedules import LinearSchedule, derive_seed

LATE = 2**62
"""More env steps than are ever sampled: schedules have reached their end."""


class ActingPolicyNetwork(Protocol):
    """A copy of the policy network that acts on the CPU; owned by a policy."""

    def load(self, weights: Weights) -> None:
        """Act with a copy of ``weights``, or in place with the weights of a learner in this thread."""

    def inputs(self, obs: Array) -> Array:
        """Return the inputs of the distribution of an action ``[B, K]`` for ``obs [B, ...]``."""


class NumpyPolicyNetwork:
    """An ActingPolicyNetwork of fully connected layers, without torch."""

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        self._config = config
        self._layers: tuple[Linear, ...]  # not before ``load``
        self._live: LiveWeights | None = None

    def load(self, weights: Weights) -> None:
        live = weights if isinstance(weights, LiveWeights) else None
        if live is not None and live is self._live:
            return
        self._live, is_live = live, live is not None
        torso = layers_of(weights, "torso", self._config.torso.activations, in_place=is_live)
        self._layers = (*torso, *layers_of(weights, "head", self._config.policy.activations, in_place=is_live))

    def inputs(self, obs: Array) -> Array:
        masking = self._config.masking
        seen = obs if masking is None else masking.observations(obs)
        inputs = forward(self._layers, centered_bytes(seen) if self._config.sees_byte_vectors else seen)
        return inputs if masking is None else masking.of_arrays(inputs, obs)


class NetworkPolicy:
    """Owns a copy of the policy network, and how it explores."""

    postprocess_reads_obs = False

    def __init__(
        self,
        network: PolicyAndCriticsConfig,
        actions: PolicyActions,
        exploration: Exploration | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Take the most likely actions if there is no ``exploration``.

        ``num_threads`` is for the forward passes of a worker in its own process; None leaves the process unchanged.
        """
        self._network = make_acting_network(network, num_threads)
        self._actions = actions
        self._explorer = None if exploration is None else exploration.explorer(actions)

    def compute_actions(self, obs: Array) -> Array:
        return self._actions.most_likely(self.finite_inputs(obs))

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        inputs = self._network.inputs(obs)
        if self._explorer is None:
            return self._actions.most_likely(inputs), {}
        return self._explorer.choose(inputs, resetting, num_steps_sampled), {}

    def finite_inputs(self, obs: Array) -> Array:
        """Return the inputs of the actions ``[B, K]``; raises NotFiniteError, as a NaN would become an action."""
        inputs = self._network.inputs(obs)
        if not np.isfinite(inputs).all():
            raise NotFiniteError("the network's outputs are NaN or infinite", "so are its weights, or an observation")
        return inputs

    def outputs(self, obs: Array) -> Outputs:
        return {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        self._network.load(weights)

    def state(self) -> dict[str, Any]:
        return {"explorer": None if self._explorer is None else self._explorer.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        if self._explorer is not None:
            self._explorer.load(state["explorer"])


class ExploringPlayer:
    """Acts in evaluations that explore, as a worker does late in its schedules."""

    def __init__(self, policy: NetworkPolicy, explorer: ActionExplorer, num_envs: int) -> None:
        self._policy, self._explorer = policy, explorer
        self._resetting = np.zeros(num_envs, np.bool_)

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[B, ...]`` for observations ``[B, ...]``."""
        return self._explorer.choose(self._policy.finite_inputs(obs), self._resetting[: len(obs)], LATE)

    def start_episodes(self, num_envs: int) -> None:
        """Let the next actions be the first ones of episodes."""
        self._explorer.start_episodes(np.ones(num_envs, np.bool_))

    def after_step(self, rewards: Array, starting: Array) -> None:
        """Let noise start anew in the envs ``starting [M]``."""
        self._explorer.start_episodes(starting)


def make_acting_network(config: PolicyAndCriticsConfig, num_threads: int | None) -> ActingPolicyNetwork:
    """Return the fastest acting network: in NumPy if possible, so that the process needs no torch."""
    if has_numpy_form(config) and num_threads in {None, 1}:
        return NumpyPolicyNetwork(config)
    from rlexp.agents.ddpg.torch_policy import TorchPolicyNetwork

    return TorchPolicyNetwork(config, num_threads)


def trained_names(config: PolicyAndCriticsConfig) -> frozenset[str] | None:
    """Return the names of the parameters of a policy network; None if all of its weights are parameters."""
    if has_numpy_form(config):
        return None
    from rlexp.agents.ddpg.torch_policy import parameter_names

    return parameter_names(config)


KeysT = TypeVar("KeysT", bound=CriticKeys)


@dataclass(frozen=True)
class Players(SeatPlayers):
    """All players of a trial, none of which explores by ε."""

    policies: PolicyNetworkPolicies[Any]
    num_seats: int = 0

    @property
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return _shapes(self.policies.network)

    @property
    def number(self) -> int:
        """Number of players; with no seats at least one."""
        num_workers: int = self.policies.config.num_workers
        return max(num_workers + self.num_seats, 1)

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        policies, config = self.policies, self.policies.config
        own_seed = derive_seed(seed, "worker", index, "exploration")
        exploration = policies.exploration(index, self.number, own_seed) if config.explore else None
        return WorkerParts(
            make_policy=partial(NetworkPolicy, policies.network, policies.actions, exploration, num_threads),
            fold=NStep(config.n_step, config.gamma),
            reported_envs=policies.reported_envs(index, self.number),
        )


class PolicyNetworkPolicies(Policies[KeysT]):
    """The policies of an agent with a policy network and critics."""

    @property
    @abstractmethod
    def actions(self) -> PolicyActions:
        """The actions for the (checked) space."""

    @property
    @abstractmethod
    def layers(self) -> tuple[LayersConfig, LayersConfig]:
        """The layers of the policy and of a critic."""

    @abstractmethod
    def exploration(self, index: int, num_players: int, seed: int) -> Exploration:
        """Return how player ``index`` of ``num_players`` explores."""

    def reported_envs(self, index: int, num_players: int) -> tuple[bool, ...] | None:
        """Return which envs of a player report their episodes; None: all."""
        return None

    @cached_property
    def network(self) -> PolicyAndCriticsConfig:
        """The shapes of the networks for the (checked) spaces."""
        config, observations, actions = self.config, self.seen_space, self.actions
        assert observations.shape is not None
        policy, critic = self.layers
        return PolicyAndCriticsConfig(
            observation_shape=observations.shape,
            num_inputs=actions.num_inputs,
            torso=torso_config_of(config, observations, self.modules),
            policy=policy,
            critic=critic,
            num_critics=2 if config.twin_q else 1,
            num_numbers=getattr(actions, "num_numbers", 0),
            sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observations),
            masking=self.masking,
        )

    def make_policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.network, self.actions)

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        assert isinstance(policy, NetworkPolicy)
        explorer = self.exploration(0, 1, seed).explorer(self.actions)
        return ExploringPlayer(policy, explorer, num_envs)

    def seat_players(self) -> Players:
        return Players(self, self.config.board.actors)

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        from rlexp.agents.ddpg.torch_policy import exportable_policy_network  # it loads torch

        assert isinstance(policy, NetworkPolicy)
        return exportable_policy_network(self.network, self.actions, policy, weights)


def _shapes(config: PolicyAndCriticsConfig) -> Shapes:
    """Return the shape of each parameter of a policy network, by name."""
    if not has_numpy_form(config):
        from rlexp.agents.ddpg.torch_policy import torch_shapes

        return torch_shapes(config)
    torso = torso_sizes(config.observation_shape, config.torso)
    head = (torso[-1], *config.policy.hiddens, config.num_inputs)
    return dict(chain(shapes_of_layers("torso", torso, config.torso.layer_norm), shapes_of_layers("head", head)))


class DDPGPolicies(PolicyNetworkPolicies[DDPGConfig]):
    """The policies of DDPG, TD3 and APEX_DDPG."""

    @cached_property
    def actions(self) -> SquashedActions:
        space = self.action_space
        if not is_continuous(space):
            raise UsageError(f"DDPG and TD3 cannot choose actions of the space {space}", "use DQN, PPO or SAC")
        return SquashedActions(space.shape, str(space.dtype))

    @property
    def layers(self) -> tuple[LayersConfig, LayersConfig]:
        config = self.config
        return (
            LayersConfig(config.actor_hiddens, config.actor_hidden_activation),
            LayersConfig(config.critic_hiddens, config.critic_hidden_activation),
        )

    def exploration(self, index: int, num_players: int, seed: int) -> NoiseExploration:
        config = self.config
        is_ou = config.exploration_noise_type == "ou"
        return NoiseExploration(
            seed=seed,
            random_timesteps=config.pure_exploration_steps,
            scale=self.scale(index, num_players),
            sigma=config.exploration_ou_sigma if is_ou else config.exploration_gaussian_sigma,
            base=config.exploration_ou_noise_scale if is_ou else None,
            theta=config.exploration_ou_theta,
        )

    def scale(self, index: int, num_players: int) -> LinearSchedule:
        """Return the factor of the noise of player ``index``, over the env steps of all players."""
        config = self.config
        if config.per_worker_exploration:
            factor = self._ladder(num_players)[index]
            return LinearSchedule(factor, factor, 0)
        first, last = config.exploration_initial_scale, config.exploration_final_scale
        return LinearSchedule(first, last, config.exploration_scale_timesteps)

    def reported_envs(self, index: int, num_players: int) -> tuple[bool, ...] | None:
        """Return whether the player is in the third with the least noise; None without ``per_worker_exploration``."""
        if not self.config.per_worker_exploration:
            return None
        ladder = sorted(self._ladder(num_players))
        limit = ladder[math.ceil(len(ladder) / 3) - 1]
        return (self._ladder(num_players)[index] <= limit,) * self.config.num_envs_per_worker

    def _ladder(self, num_players: int) -> tuple[float, ...]:
        """Return each player's factor; any number of first players is spread over the whole ladder."""
        factors = epsilon_ladder(num_players)
        return tuple(factors[place] for place in ladder_places(num_players))
