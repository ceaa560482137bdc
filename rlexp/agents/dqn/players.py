"""Who plays for the DQN family: its network, own workers and joined actors, and the policies that play checkpoints.

A player's index says its place on the ladder of ε: a trial's own workers come first, then the seats of those who join.
No torch is imported here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from rlexp.agents.dqn.exploration import (
    AnnealedEpsilon,
    ConstantEpsilon,
    EpsilonGreedyPolicy,
    EpsilonSchedule,
    PolicyExploration,
    epsilon_ladder,
)
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.policies import Exportable, Policies
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.exploration_keys import ExplorationKeys
from rlexp.envs.spaces import is_byte_vector
from rlexp.models.dense import parameter_shapes
from rlexp.models.network_config import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.folds import NStep
from rlexp.schedules import LinearSchedule


@dataclass(frozen=True)
class ExploringPlayers:
    """All players of a trial, each known by its index, and how each of them explores."""

    config: ExplorationKeys
    network: QNetworkConfig
    num_seats: int | None = None
    """Of joined actors; None: the trial has no board."""

    @property
    def number(self) -> int:
        """How many there are."""
        if self.num_seats is None:
            return max(self.config.num_workers, 1)
        return self.config.num_workers + self.num_seats

    def epsilon_schedule(self, index: int) -> EpsilonSchedule:
        """Return the ε of the envs of player ``index``."""
        config, num_envs = self.config, self.config.num_envs_per_worker
        if not config.explores_by_epsilon:
            return ConstantEpsilon((0.0,) * num_envs)
        if not config.per_worker_exploration:
            first, last = config.exploration_initial_eps, config.exploration_final_eps
            schedule = LinearSchedule(first, last, config.resolved_epsilon_timesteps)
            return AnnealedEpsilon(schedule, config.exploration_warmup_timesteps, num_envs)
        ladder = self._ladder()
        return ConstantEpsilon(tuple(ladder[rung] for rung in self._rungs(index)))

    def mean_epsilon(self, index: int, num_steps_sampled: int) -> float | None:
        """Return the mean ε of the envs of player ``index``; None where nothing explores."""
        if not self.config.explore:
            return None
        return float(self.epsilon_schedule(index).epsilons(num_steps_sampled).mean())

    def reported_epsilon(self) -> float:
        """Return the largest ε of the third of the ladder that explores least; no limit without a ladder.

        Only episodes of envs with at most this ε count for ``episode_reward_mean``.
        """
        if not (self.config.per_worker_exploration and self.config.explores_by_epsilon):
            return math.inf
        ladder = sorted(self._ladder())
        return ladder[math.ceil(len(ladder) / 3) - 1]

    def figures(self, num_steps_sampled: int) -> dict[str, Any]:
        """Return ε once all have sampled so many env steps, for the results."""
        epsilons = [self.epsilon_schedule(index).epsilons(num_steps_sampled) for index in range(self.number)]
        return {
            "min_exploration": float(min(each.min() for each in epsilons)),
            "max_exploration": float(max(each.max() for each in epsilons)),
            "exploration_per_worker": {str(index): float(each.mean()) for index, each in enumerate(epsilons)},
        }

    def reported_envs(self, index: int) -> tuple[bool, ...] | None:
        """Return which envs of player ``index`` report their episodes; None: all."""
        limit = self.reported_epsilon()
        if math.isinf(limit):
            return None
        return tuple((self.epsilon_schedule(index).epsilons(0) <= limit).tolist())

    def exploration(self, index: int, seed: int) -> PolicyExploration | None:
        """Return how the policy of player ``index`` explores; None where none does."""
        config = self.config
        if not config.explore:
            return None
        return PolicyExploration(
            epsilon=self.epsilon_schedule(index),
            seed=seed,
            worker_index=index,
            softmax_temp=config.softmax_temp if config.soft_q else None,
        )

    @property
    def _has_rung_per_player(self) -> bool:
        if self.num_seats is None or self.config.epsilon_ladder is not None:
            return self.config.resolved_epsilon_ladder == "worker"
        return self.number > 1

    def _ladder(self) -> tuple[float, ...]:
        return epsilon_ladder(self.number if self._has_rung_per_player else self.number * self._num_envs)

    def _rungs(self, index: int) -> tuple[int, ...]:
        """Return the rung of each env: in order, or with a board such that any number of players spans the ladder."""
        if self._has_rung_per_player:
            rung = index if self.num_seats is None else rungs(self.number)[index]
            return (rung,) * self._num_envs
        if self.num_seats is None:
            return tuple(range(index * self._num_envs, (index + 1) * self._num_envs))
        return rungs_of_envs(self.number, self._num_envs)[index]

    @property
    def _num_envs(self) -> int:
        return self.config.num_envs_per_worker


@dataclass(frozen=True)
class DQNWorkerParts(ExploringPlayers):
    """The players of DQN and APEX: the trial's own workers first, then the seats."""

    config: DQNConfig

    @property
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the Q-network's parameters, by name."""
        return parameter_shapes(self.network)

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        """Return what player ``index`` is built from beside the env; ``num_threads`` are for its forward passes."""
        config = self.config
        return WorkerParts(
            make_policy=partial(
                DQNPolicy,
                self.network,
                self.exploration(index, seed),
                config.worker_side_prioritization,
                num_threads,
            ),
            fold=NStep(config.n_step, config.gamma),
            reported_envs=self.reported_envs(index),
        )

    def exploration(self, index: int, seed: int) -> PolicyExploration | None:
        found = super().exploration(index, seed)
        if found is None or not self.config.parameter_noise:
            return found
        return replace(found, parameter_noise_stddev=self.config.parameter_noise_initial_stddev)


def rungs(num_players: int) -> tuple[int, ...]:
    """Return the rung of each of ``num_players``, 0 to ``num_players - 1``, in van der Corput's order from the last on.

    However many of the first players are there, they are spread over the whole ladder. The first player has the last
    rung, on which is explored least: the episodes that are reported come from there.
    """
    num_bits = max(num_players - 1, 0).bit_length()
    spread = [_reversed_bits(number, num_bits) for number in range(1 << num_bits)]
    return tuple(num_players - 1 - number for number in spread if number < num_players)


def rungs_of_envs(num_players: int, num_envs: int) -> tuple[tuple[int, ...], ...]:
    """Return the rungs of each player's envs, on a ladder with one rung for every env of all players."""
    return tuple(tuple(env * num_players + rung for env in range(num_envs)) for rung in rungs(num_players))


def _reversed_bits(number: int, num_bits: int) -> int:
    return sum(1 << (num_bits - 1 - bit) for bit in range(num_bits) if number >> bit & 1)


ExplorationKeysT = TypeVar("ExplorationKeysT", bound=ExplorationKeys)


class QNetworkPolicies(Policies[ExplorationKeysT]):
    """The policies of an agent that acts by a Q-network; it says which ``head`` this has."""

    @property
    @abstractmethod
    def head(self) -> HeadConfig:
        """What lies between the torso and the action values."""

    @cached_property
    def network(self) -> QNetworkConfig:
        """The shape of the Q-network for the (checked) spaces."""
        config, observations, actions = self.config, self.observation_space, self.action_space
        assert observations.shape is not None
        assert isinstance(actions, gym.spaces.Discrete)
        return QNetworkConfig(
            observation_shape=observations.shape,
            num_actions=int(actions.n),
            torso=torso_config_of(config, observations, self.modules),
            head=self.head,
            sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observations),
        )

    def make_policy(self) -> DQNPolicy:
        return DQNPolicy(self.network)

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        epsilons = np.full(num_envs, self.config.evaluation_epsilon)
        return EpsilonGreedyPolicy(policy, epsilons, self.network.num_actions, seed)

    def evaluation_exploration(self) -> Mapping[str, float]:
        return {"epsilon": self.config.evaluation_epsilon}

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        from rlexp.agents.dqn.torch_policy import exportable_q_network  # it loads torch

        assert isinstance(policy, DQNPolicy)
        return exportable_q_network(self.network, policy, weights)


class DQNPolicies(QNetworkPolicies[DQNConfig]):
    """The policies of DQN and APEX."""

    @property
    def head(self) -> HeadConfig:
        config = self.config
        return HeadConfig(
            hiddens=config.hiddens,
            dueling=config.dueling,
            noisy=config.noisy,
            sigma0=config.sigma0,
            num_atoms=config.num_atoms,
            v_min=config.v_min,
            v_max=config.v_max,
        )

    def seat_players(self) -> DQNWorkerParts:
        return DQNWorkerParts(self.config, self.network, self.config.board.actors)
