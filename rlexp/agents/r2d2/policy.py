"""R2D2's acting: DQN's policy with a memory of each env's episode, and its players. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from gymnasium.spaces import Discrete

from rlexp.agents.dqn.exploration import EpsilonGreedyPolicy, PolicyExploration
from rlexp.agents.dqn.players import DQNPolicies, DQNWorkerParts
from rlexp.agents.dqn.policy import Q_VALUES, ActingNetwork, DQNPolicy, NumpyActingNetwork
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.r2d2 import R2D2Config
from rlexp.models.action_distributions import actions_of
from rlexp.models.dense import Linear, centered_bytes, forward, layers_of
from rlexp.models.memory import EpisodeMemory, NumpyLSTM, PreviousStep
from rlexp.models.network_config import MemoryConfig, QNetworkConfig, has_numpy_form
from rlexp.policy import Outputs, Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.sequences import NUM_FOLDED, ReplaySequences
from rlexp.sample_batch import ACTIONS, DISCOUNTS, REWARDS, TD_ERRORS, Array, SampleBatch

if TYPE_CHECKING:
    from torch import Tensor

ETA = 0.9
"""The share of the largest TD error in the priority of a sequence; the mean has the rest (section 2.3)."""


Numbers = TypeVar("Numbers", Array, "Tensor")


def rescaled(x: Numbers, epsilon: float) -> Numbers:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, section 3.2).

    Here and in ``unrescaled``, no nearly equal numbers are subtracted.
    """
    h: Numbers = x / ((abs(x) + 1) ** 0.5 + 1) + epsilon * x
    return h


def unrescaled(x: Numbers, epsilon: float) -> Numbers:
    """Return the y with ``rescaled(y)`` = x, from r = sqrt(|y| + 1), which solves |x| = r - 1 + epsilon (r^2 - 1)."""
    shifted = abs(x) + (1 + epsilon)
    after = 2 * shifted / ((1 + 4 * epsilon * shifted) ** 0.5 + 1) + 1
    y: Numbers = x * after / (1 + epsilon * after)
    return y


@dataclass(frozen=True)
class MemorySettings:
    """What R2D2's policy needs beside DQN's settings."""

    previous_step: PreviousStep
    """What the network sees of the step before."""
    sequences: ReplaySequences
    """The form of the rows that the worker sends."""
    h_epsilon: float | None
    """The ``epsilon`` of h; None: values are not rescaled."""


class RecurrentActingNetwork(ActingNetwork, Protocol):
    """An ActingNetwork with a memory."""

    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array]:
        """Return the outputs of the heads for ``obs [M, ...]``, and the states ``[M, 2 H]`` after it."""


class R2D2Policy(DQNPolicy):
    """A DQNPolicy with a memory, which also returns for each step what the memory held before it."""

    _network: RecurrentActingNetwork

    def __init__(self, settings: MemorySettings, network: QNetworkConfig, *arguments: Any) -> None:
        """Initialise; ``arguments`` are the others of a DQNPolicy."""
        super().__init__(network, *arguments)
        assert network.memory is not None
        self.memory = EpisodeMemory(network.memory, settings.previous_step)
        self._settings = settings

    def _make_network(
        self, network: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None
    ) -> RecurrentActingNetwork:
        if has_numpy_form(network) and num_threads in {None, 1}:
            is_noisy = exploration is not None and network.head.noisy
            return NumpyRecurrentNetwork(network, exploration.seed_of("noise") if exploration and is_noisy else None)
        from rlexp.agents.dqn.torch_policy import TorchActingNetwork

        return TorchActingNetwork(network, exploration, num_threads)

    def compute_actions(self, obs: Array) -> Array:
        outputs, states = self._step(obs)
        actions: Array = self._finite_values(outputs, obs).argmax(axis=1)
        self.memory.acted(states, actions)
        return actions

    def action_values(self, obs: Array) -> Array:
        """Return the action values ``[B, A]`` for ``obs [B, ...]``, without remembering them; raises NotFiniteError."""
        return self._finite_values(self._step(obs)[0], obs)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        outputs, states = self._step(obs)
        values, before = self._values(outputs, obs), self.memory.columns()
        if self._explorer is None:
            actions: Array = values.argmax(axis=1)
        else:
            epsilons = self._explorer.epsilons(num_steps_sampled, len(obs))
            actions = self._explorer.choose(values, epsilons, self._allowed(obs))
        self.memory.acted(states, actions)
        return actions, {**before, **self.returned(values, obs)}

    def outputs(self, obs: Array) -> Outputs:
        before = self.memory.of(len(obs)).columns()
        return {
            **before,
            **(self.returned(self._values(self._step(obs)[0], obs), obs) if self._returns_outputs else {}),
        }

    def start_episodes(self, num_envs: int) -> None:
        self.memory.start(num_envs)

    def after_step(self, rewards: Array, starting: Array) -> None:
        self.memory.stepped(rewards, starting)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add first priorities of sequences, from the values with which the worker acted."""
        if Q_VALUES not in batch:
            return batch
        columns = {name: column for name, column in batch.columns.items() if name != Q_VALUES}
        return SampleBatch({**columns, TD_ERRORS: self._first_priorities(batch)})

    def state(self) -> dict[str, Any]:
        return super().state() | {"memory": self.memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.memory.load(state["memory"])

    def _step(self, obs: Array) -> tuple[Array, Array]:
        """Return the outputs for ``obs [M, ...]``, and the states ``[M, 2 H]`` after it."""
        memory = self.memory.of(len(obs))
        return self._network.step(obs, memory.previous, memory.states)

    def _first_priorities(self, batch: SampleBatch) -> Array:
        """Return eta max + (1 - eta) mean ``[B]`` of the TD errors; the best action's value is already masked."""
        burn_in, epsilon = self._settings.sequences.burn_in, self._settings.h_epsilon
        q, folded = batch[Q_VALUES][:, burn_in:], batch[NUM_FOLDED]
        steps, is_learned = np.arange(folded.shape[1]), folded > 0
        q_t = np.take_along_axis(q.max(axis=2), steps + folded, axis=1)
        q_tm1 = np.take_along_axis(q[:, : len(steps)], batch[ACTIONS][:, :, None], axis=2)[:, :, 0]
        if epsilon is None:
            target = batch[REWARDS] + batch[DISCOUNTS] * q_t
        else:
            target = rescaled(batch[REWARDS] + batch[DISCOUNTS] * unrescaled(q_t, epsilon), epsilon)
        errors = np.where(is_learned, np.abs(target - q_tm1), 0)
        means = errors.sum(axis=1) / is_learned.sum(axis=1)
        priorities: Array = ETA * errors.max(axis=1, initial=0) + (1 - ETA) * means
        return priorities.astype(np.float32)


class NumpyRecurrentNetwork(NumpyActingNetwork):
    """A RecurrentActingNetwork of fully connected layers and an LSTM, without torch: its heads are its parent's."""

    def __init__(self, config: QNetworkConfig, noise_seed: int | None = None) -> None:
        """Draw the noise of noisy heads from ``noise_seed``; None: no noise."""
        assert config.memory is not None
        torso = replace(config.torso, fcnet_hiddens=(), post_fcnet_hiddens=())
        shape = (config.memory.cell_size,)
        head = replace(config, observation_shape=shape, torso=torso, sees_byte_vectors=False, masking=None)
        super().__init__(head, noise_seed)
        self._config = config
        self._torso: tuple[Linear, ...]  # not before ``load``

    def load(self, weights: Weights) -> None:
        """Act with a copy of ``weights``."""
        of_parts = {part: {} for part in ("torso", "memory", "head")}  # type: dict[str, dict[str, Array]]
        for name, weight in weights.items():
            part = name.partition(".")[0]
            of_parts[part if part in of_parts else "head"][name] = weight
        self._torso = tuple(layers_of(of_parts["torso"], "torso", self._config.torso.activations))
        self._lstm = NumpyLSTM(of_parts["memory"])
        super().load(of_parts["head"])

    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array]:
        masking = self._config.masking
        seen = obs if masking is None else masking.observations(obs)
        features = forward(self._torso, centered_bytes(seen) if self._config.sees_byte_vectors else seen)
        remembered, following = self._lstm.step(features, previous, states)
        return self.outputs(remembered), following


class RememberingPlayer(EpsilonGreedyPolicy):
    """Explores by ε in evaluations, and lets the policy remember the actions that were taken."""

    def __init__(self, policy: R2D2Policy, *arguments: Any) -> None:
        """Initialise; ``arguments`` are the others of an EpsilonGreedyPolicy."""
        super().__init__(policy, *arguments)
        self._remembering = policy

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[M]``."""
        actions, memory = super().compute_actions(obs), self._remembering.memory
        memory.acted(memory.states, actions)
        return actions


@dataclass(frozen=True)
class R2D2WorkerParts(DQNWorkerParts):
    """The players of R2D2 and APEX_R2D2."""

    settings: MemorySettings | None = None

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        assert self.settings is not None
        make_policy = partial(
            R2D2Policy,
            self.settings,
            self.network,
            self.exploration(index, seed),
            self.config.worker_side_prioritization,
            num_threads,
        )
        return WorkerParts(make_policy, self.settings.sequences, self.reported_envs(index))


class R2D2Policies(DQNPolicies):
    """The policies of R2D2 and APEX_R2D2."""

    config: R2D2Config

    @cached_property
    def network(self) -> QNetworkConfig:
        """The shape of the Q-network, with its LSTM."""
        memory = MemoryConfig(self.config.model.lstm_cell_size, self.settings.previous_step.num_numbers)
        return replace(super().network, memory=memory)

    @property
    def sequences(self) -> ReplaySequences:
        """The form of the rows of replay."""
        return ReplaySequences.of(self.config.replay, self.config.gamma)

    @property
    def settings(self) -> MemorySettings:
        """What a policy needs beside DQN's settings."""
        config = self.config
        assert isinstance(self.action_space, Discrete)
        previous = PreviousStep.of(config.model, actions_of(Discrete(self.action_space.n)))
        return MemorySettings(previous, self.sequences, config.h_function_epsilon if config.use_h_function else None)

    def make_policy(self) -> R2D2Policy:
        return R2D2Policy(self.settings, self.network)

    def players(self, num_seats: int | None) -> R2D2WorkerParts:
        return R2D2WorkerParts(self.config, self.network, num_seats, self.settings)

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        assert isinstance(policy, R2D2Policy)
        epsilons = np.full(num_envs, self.config.evaluation_epsilon)
        return RememberingPlayer(policy, epsilons, self.network.num_actions, seed, self.masking)
