"""The policy of PPO, A2C, IMPALA and APPO: draws actions from the distributions of an actor-critic network.

Workers and joined actors are ``ActorCriticPlayers``. Checkpoints are played by ``ActorCriticPolicies``. No torch is
imported here, unless a network needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from rlexp.agents.policies import Exportable, Policies, SeatPlayers
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.envs.spaces import is_byte_vector
from rlexp.errors import NotFiniteError
from rlexp.models.action_distributions import Actions, GaussianActions, actions_of
from rlexp.models.dense import NumpyActorCritic, NumpyRecurrentActorCritic
from rlexp.models.memory import EpisodeMemory, PreviousStep
from rlexp.models.network_config import (
    ActorCriticConfig,
    MemoryConfig,
    has_numpy_form,
    parameter_shapes,
    torso_config_of,
)
from rlexp.policy import Outputs, Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy, WrappedPolicy
from rlexp.rollout.folds import DIST_INPUTS, LOGP, VF_PREDS, Advantages, Segments
from rlexp.sample_batch import ACTIONS, Array, SampleBatch
from rlexp.schedules import derive_seed


class ActingActorCritic(Protocol):
    """A copy of the actor-critic network that acts on the CPU; owned by a policy."""

    def load(self, weights: Weights) -> None:
        """Act with a copy of these weights from now on."""

    def outputs(self, obs: Array) -> tuple[Array, Array]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]`` for ``obs [B, ...]``."""


class ActingRecurrentActorCritic(ActingActorCritic, Protocol):
    """An ActingActorCritic with a memory."""

    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array, Array]:
        """Return the outputs for ``obs [M, ...]``, and the states ``[M, 2 H]`` after them; see EpisodeMemory."""


class ActorCriticPolicy:
    """Owns a copy of the network, and the random stream of its actions."""

    postprocess_reads_obs = False

    def __init__(
        self, network: ActorCriticConfig, actions: Actions, seed: int | None = None, num_threads: int | None = None
    ) -> None:
        """Take the most likely actions if there is no ``seed``.

        ``num_threads`` is for the forward passes of a worker in its own process; None leaves the process unchanged.
        """
        self._network = make_acting_network(network, num_threads)
        self._actions = actions
        self._rng = None if seed is None else np.random.default_rng(seed)

    def compute_actions(self, obs: Array) -> Array:
        return self._chosen(self.finite_outputs(obs)[DIST_INPUTS], None)

    def drawn_actions(self, obs: Array, rng: np.random.Generator) -> Array:
        """Return actions ``[B, ...]`` for observations ``[B, ...]``, drawn with ``rng``."""
        return self._chosen(self.finite_outputs(obs)[DIST_INPUTS], rng)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        outputs = self.outputs(obs)
        return self._chosen(outputs[DIST_INPUTS], self._rng), outputs

    def outputs(self, obs: Array) -> Outputs:
        inputs, values = self._network.outputs(obs)
        return {DIST_INPUTS: inputs, VF_PREDS: values}

    def finite_outputs(self, obs: Array) -> Outputs:
        """Return the ``outputs``; raises NotFiniteError, as a NaN would otherwise become an action."""
        return _finite(self.outputs(obs))

    def _chosen(self, inputs: Array, rng: np.random.Generator | None) -> Array:
        """Return actions that are drawn with ``rng``; the most likely ones without."""
        return self._actions.most_likely(inputs) if rng is None else self._actions.draw(inputs, rng)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add LOGP for all rows at once, which takes less time than at each step."""
        return batch.with_columns(**{LOGP: self._actions.log_prob(batch[DIST_INPUTS], batch[ACTIONS])})

    def set_weights(self, weights: Weights) -> None:
        self._network.load(weights)

    def state(self) -> dict[str, Any]:
        return {"rng": None if self._rng is None else self._rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        if self._rng is not None:
            self._rng.bit_generator.state = state["rng"]


def _finite(outputs: Outputs) -> Outputs:
    """Return ``outputs``; raises NotFiniteError if the inputs of a distribution are not finite."""
    if not np.isfinite(outputs[DIST_INPUTS]).all():
        raise NotFiniteError("the network's outputs are NaN or infinite", "so are its weights, or an observation")
    return outputs


class RecurrentPolicy(ActorCriticPolicy):
    """An ActorCriticPolicy with a memory: what it remembers comes with each row of a fragment, for the learner."""

    _network: ActingRecurrentActorCritic

    def __init__(self, previous_step: PreviousStep, network: ActorCriticConfig, *settings: Any) -> None:
        """Let the network see ``previous_step``; the others are the arguments of an ActorCriticPolicy."""
        super().__init__(network, *settings)
        assert network.memory is not None
        self.memory = EpisodeMemory(network.memory, previous_step)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        outputs, states = self.step(obs)
        actions = self._chosen(outputs[DIST_INPUTS], self._rng)
        self.memory.acted(states, actions)
        return actions, outputs

    def outputs(self, obs: Array) -> Outputs:
        """Return the outputs of ``act``, without remembering them."""
        return self.step(obs)[0]

    def step(self, obs: Array) -> tuple[Outputs, Array]:
        """Return the outputs of ``act`` for observations ``[M, ...]``, and the states ``[M, 2 H]`` after them."""
        memory = self.memory.of(len(obs))
        inputs, values, states = self._network.step(obs, memory.previous, memory.states)
        return {DIST_INPUTS: inputs, VF_PREDS: values, **memory.columns()}, states

    def compute_actions(self, obs: Array) -> Array:
        return self._remembered(obs, None)

    def drawn_actions(self, obs: Array, rng: np.random.Generator) -> Array:
        return self._remembered(obs, rng)

    def start_episodes(self, num_envs: int) -> None:
        self.memory.start(num_envs)

    def after_step(self, rewards: Array, starting: Array) -> None:
        self.memory.stepped(rewards, starting)

    def state(self) -> dict[str, Any]:
        return super().state() | {"memory": self.memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.memory.load(state["memory"])

    def _remembered(self, obs: Array, rng: np.random.Generator | None) -> Array:
        outputs, states = self.step(obs)
        actions = self._chosen(_finite(outputs)[DIST_INPUTS], rng)
        self.memory.acted(states, actions)
        return actions


class StochasticPlayer(WrappedPolicy):
    """Acts in evaluations that explore: draws each action, as workers do."""

    def __init__(self, policy: ActorCriticPolicy, seed: int) -> None:
        super().__init__(policy)
        self._policy = policy
        self._rng = np.random.default_rng(seed)

    def compute_actions(self, obs: Array) -> Array:
        """Return the drawn actions ``[B, ...]``."""
        return self._policy.drawn_actions(obs, self._rng)


def make_acting_network(config: ActorCriticConfig, num_threads: int | None) -> ActingActorCritic:
    """Return the fastest acting network: in NumPy if possible, so that the process needs no torch."""
    if has_numpy_form(config) and num_threads in {None, 1}:
        return NumpyActorCritic(config) if config.memory is None else NumpyRecurrentActorCritic(config)
    from rlexp.agents.actor_critic.torch_policy import TorchActingActorCritic

    return TorchActingActorCritic(config, num_threads)


@dataclass(frozen=True)
class ActorCriticPlayers(SeatPlayers):
    """All players of a trial, none of which explores by ε."""

    policies: ActorCriticPolicies

    @property
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self.policies.network)

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        config = self.policies.config
        own_seed = derive_seed(seed, "worker", index, "exploration") if config.explore else None
        length = config.model.sequence_length
        return WorkerParts(
            make_policy=partial(self.policies.policy_maker, own_seed, num_threads),
            fold=Segments(config.gamma, length)
            if config.workers_send_segments
            else Advantages(config.gamma, config.lambda_, config.use_gae, config.use_critic, length),
        )


class ActorCriticPolicies(Policies[ActorCriticKeys]):
    """The policies of an agent with an actor-critic network."""

    @cached_property
    def actions(self) -> Actions:
        """The distribution from which actions are drawn."""
        return actions_of(self.action_space)

    @cached_property
    def network(self) -> ActorCriticConfig:
        """The shape of the network for the (checked) spaces."""
        config, model, observations = self.config, self.config.model, self.seen_space
        assert observations.shape is not None
        is_free = model.free_log_std and isinstance(self.actions, GaussianActions)
        return ActorCriticConfig(
            observation_shape=observations.shape,
            num_inputs=self.actions.num_inputs,
            num_free_log_std=self.actions.num_inputs // 2 if is_free else 0,
            torso=torso_config_of(config, observations, self.modules),
            shares_torso=model.vf_share_layers or model.use_lstm,
            sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observations),
            masking=self.masking,
            memory=MemoryConfig(model.lstm_cell_size, self.previous_step.num_numbers) if model.use_lstm else None,
        )

    @property
    def previous_step(self) -> PreviousStep:
        """What an LSTM sees of the step before."""
        return PreviousStep.of(self.config.model, self.actions)

    @property
    def policy_maker(self) -> Callable[..., ActorCriticPolicy]:
        """A function that makes a policy of its seed and threads, in any process."""
        shape = self.network, self.actions
        is_plain = self.network.memory is None
        return partial(ActorCriticPolicy, *shape) if is_plain else partial(RecurrentPolicy, self.previous_step, *shape)

    def make_policy(self) -> ActorCriticPolicy:
        return self.policy_maker()

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        assert isinstance(policy, ActorCriticPolicy)
        return StochasticPlayer(policy, seed)

    def seat_players(self) -> ActorCriticPlayers:
        return ActorCriticPlayers(self)

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        from rlexp.agents.actor_critic.torch_policy import exportable_actor_critic  # it loads torch

        assert isinstance(policy, ActorCriticPolicy)
        return exportable_actor_critic(self.network, self.actions, policy, weights)
