"""The players of the DQN family: its network, own workers and joined actors, and the policies for checkpoints.

A player's index decides its ε: a trial's own workers come first, then the seats of joined actors. No torch is imported
here.
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
from rlexp.agents.policies import Exportable, Policies, SeatPlayers
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.exploration_keys import ExplorationKeys
from rlexp.envs.spaces import is_byte_vector
from rlexp.models.network_config import HeadConfig, QNetworkConfig, parameter_shapes, torso_config_of
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.folds import NStep
from rlexp.schedules import LinearSchedule


@dataclass(frozen=True)
class ExploringPlayers:
    """All players of a trial, each with an index and a way to explore."""

    config: ExplorationKeys
    network: QNetworkConfig
    num_seats: int | None = None
    """Slots for joined actors; None: the trial has no board."""

    @property
    def number(self) -> int:
        """Number of players."""
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
        return ConstantEpsilon(tuple(ladder[place] for place in self._ladder_places(index)))

    def mean_epsilon(self, index: int, num_steps_sampled: int) -> float | None:
        if not self.config.explore:
            return None
        return float(self.epsilon_schedule(index).epsilons(num_steps_sampled).mean())

    def reported_epsilon(self) -> float:
        """Return the largest ε in the least-exploring third of the ladder; no limit without a ladder.

        Only episodes of envs with at most this ε count for ``episode_reward_mean``.
        """
        if not (self.config.per_worker_exploration and self.config.explores_by_epsilon):
            return math.inf
        ladder = sorted(self._ladder())
        return ladder[math.ceil(len(ladder) / 3) - 1]

    def figures(self, num_steps_sampled: int) -> dict[str, Any]:
        """Return ε for the results, after all players together have sampled so many env steps."""
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
        """Return the exploration of player ``index``; None if its policy does not explore."""
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
    def _has_place_per_player(self) -> bool:
        if self.num_seats is None or self.config.epsilon_ladder is not None:
            return self.config.resolved_epsilon_ladder == "worker"
        return self.number > 1

    def _ladder(self) -> tuple[float, ...]:
        return epsilon_ladder(self.number if self._has_place_per_player else self.number * self._num_envs)

    def _ladder_places(self, index: int) -> tuple[int, ...]:
        """Return each env's ladder place: in order, or with a board spread out for any number of players."""
        if self._has_place_per_player:
            place = index if self.num_seats is None else ladder_places(self.number)[index]
            return (place,) * self._num_envs
        if self.num_seats is None:
            return tuple(range(index * self._num_envs, (index + 1) * self._num_envs))
        return ladder_places_of_envs(self.number, self._num_envs)[index]

    @property
    def _num_envs(self) -> int:
        return self.config.num_envs_per_worker


@dataclass(frozen=True)
class DQNWorkerParts(ExploringPlayers, SeatPlayers):
    """The players of DQN and APEX: the trial's own workers first, then the seats of joined actors."""

    config: DQNConfig

    @property
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self.network)

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
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


def ladder_places(num_players: int) -> tuple[int, ...]:
    """Return each player's ladder place, 0 to ``num_players - 1``, in van der Corput's order from the last on.

    Any number of first players is spread over the whole ladder. The first player has the last place, with the least
    exploration: the reported episodes come from there.
    """
    num_bits = max(num_players - 1, 0).bit_length()
    spread = [_reversed_bits(number, num_bits) for number in range(1 << num_bits)]
    return tuple(num_players - 1 - number for number in spread if number < num_players)


def ladder_places_of_envs(num_players: int, num_envs: int) -> tuple[tuple[int, ...], ...]:
    """Return the ladder places of each player's envs, with one place for every env of all players."""
    return tuple(tuple(env * num_players + place for env in range(num_envs)) for place in ladder_places(num_players))


def _reversed_bits(number: int, num_bits: int) -> int:
    return sum(1 << (num_bits - 1 - bit) for bit in range(num_bits) if number >> bit & 1)


ExplorationKeysT = TypeVar("ExplorationKeysT", bound=ExplorationKeys)


class QNetworkPolicies(Policies[ExplorationKeysT]):
    """The policies of an agent that acts by a Q-network; the agent defines ``head``."""

    @property
    @abstractmethod
    def head(self) -> HeadConfig:
        """The layers between the torso and the action values."""

    @cached_property
    def network(self) -> QNetworkConfig:
        """The shape of the Q-network for the (checked) spaces."""
        config, observations, actions = self.config, self.seen_space, self.action_space
        assert observations.shape is not None
        assert isinstance(actions, gym.spaces.Discrete)
        return QNetworkConfig(
            observation_shape=observations.shape,
            num_actions=int(actions.n),
            torso=torso_config_of(config, observations, self.modules),
            head=self.head,
            sees_byte_vectors=config.observation_filter == "NoFilter" and is_byte_vector(observations),
            masking=self.masking,
        )

    def make_policy(self) -> DQNPolicy:
        return DQNPolicy(self.network)

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        epsilons = np.full(num_envs, self.config.evaluation_epsilon)
        return EpsilonGreedyPolicy(policy, epsilons, self.network.num_actions, seed, self.masking)

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
            has_quantiles=config.num_atoms > 1 and config.distribution == "quantiles",
        )

    def players(self, num_seats: int | None) -> DQNWorkerParts:
        """Return all players of a trial, which may have seats for joined actors."""
        return DQNWorkerParts(self.config, self.network, num_seats)

    def seat_players(self) -> DQNWorkerParts:
        return self.players(self.config.board.actors)
