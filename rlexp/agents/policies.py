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


@dataclass(frozen=True)
class Policies(ABC, Generic[PlayedConfigT]):
    """How one experiment is played; an algorithm derives from it. Importing that class loads neither torch nor Ray."""

    config: PlayedConfigT
    observation_space: gym.Space[Any]
    """Of what a policy sees: one of the env's observations, prepared."""
    action_space: gym.Space[Any]
    """Of what a policy chooses."""
    modules: UserModules = NO_MODULES
    """The user's, which may be imported."""

    @abstractmethod
    def make_policy(self) -> Policy:
        """Return a new policy that acts in this process without exploration."""

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        """Return ``policy`` as it acts in evaluations that explore, in ``num_envs`` envs; by default, greedily."""
        return policy

    def evaluation_exploration(self) -> Mapping[str, float]:
        """Return the figures of ``exploring_player``, such as ε, by name."""
        return {}

    def seat_players(self) -> SeatPlayers:
        """Return who plays a trial that actors join, where ``config.board_obstacle`` is None."""
        raise self._unsaid("how joined actors play", "seat_players")

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        """Return what ``policy``, which has ``weights``, is exported as; raises UsageError where it cannot be."""
        raise self._unsaid("how it is exported", "exportable")

    def _unsaid(self, what: str, method: str) -> UsageError:
        return UsageError(f"{type(self).__name__} does not say {what}", f"implement Policies.{method}")
