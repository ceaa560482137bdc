"""Policies: how an algorithm acts where its agent is not: in evaluations, checkpoints, exports, and seats of a board.

For an export it gives its network as torch has it, and what its policy computes, to check by. Nothing here loads torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import gymnasium as gym

from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.errors import UsageError
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Exportable:
    """The greedy policy of one algorithm, twice."""

    network: nn.Module
    """Returns for what the policy sees ``[B, ...]`` its actions ``[B, ...]``, and then the arrays of ``output_names``.

    The first of these arrays are what actions are chosen by.
    """
    output_names: tuple[str, ...]
    outputs: Callable[[Array], tuple[Array, ...]]
    """The same arrays as the policy computes them; raises NotFiniteError."""
    choose: Callable[[Array], Array]
    """Returns the policy's actions ``[B, ...]`` by the first of these arrays."""


class SeatPlayers(Protocol):
    """The players of a trial that actors join, by index: the trial's own workers first, then the seats."""

    @property
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the arrays that they act with, by name; raises UsageError or ModuleNotFoundError where none act here."""
        ...

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        """Return what player ``index`` is built from beside the env; ``num_threads`` are for its forward passes."""
        ...

    def mean_epsilon(self, index: int, num_steps_sampled: int) -> float | None:
        """Return the mean ε of a player's envs once all have sampled so many env steps; None where it has none."""
        ...


PlayedConfigT = TypeVar("PlayedConfigT", bound=CommonConfig)


class Policies(ABC, Generic[PlayedConfigT]):
    """Has no state and is never made; an algorithm derives from it. Importing one loads neither torch nor Ray."""

    @classmethod
    @abstractmethod
    def make_policy(
        cls,
        config: PlayedConfigT,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> Policy:
        """Return a new policy that acts in this process without exploration; it may import the user's ``modules``."""

    @classmethod
    def exploring_player(
        cls, config: PlayedConfigT, policy: Policy, action_space: gym.Space[Any], num_envs: int, seed: int
    ) -> ActingPolicy:
        """Return ``policy`` as it acts in evaluations that explore, in ``num_envs`` envs; by default, greedily."""
        return policy

    @classmethod
    def evaluation_exploration(cls, config: PlayedConfigT) -> Mapping[str, float]:
        """Return the figures of ``exploring_player``, such as ε, by name."""
        return {}

    @classmethod
    def seat_players(
        cls,
        config: PlayedConfigT,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> SeatPlayers:
        """Return who plays a trial that actors join, where ``config.board_obstacle`` is None."""
        raise UsageError(f"{cls.__name__} does not say how joined actors play", "implement Policies.seat_players")

    @classmethod
    def exportable(
        cls,
        config: PlayedConfigT,
        policy: Policy,
        weights: Weights,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        modules: UserModules = NO_MODULES,
    ) -> Exportable:
        """Return what ``policy``, which has ``weights``, is exported as; raises UsageError where an algorithm cannot.

        The spaces are those of what the policy sees and chooses.
        """
        raise UsageError(f"{cls.__name__} does not say how it is exported", "implement Policies.exportable")
