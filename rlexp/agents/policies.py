"""Policies: how an algorithm acts outside of its agent: in evaluations, checkpoints, exports, and actors of a board.

For an export, they give the network in torch, and the policy's own outputs to check it with. Nothing here loads torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import gymnasium as gym

from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.envs.action_masks import MaskedSpace, seen_space
from rlexp.errors import UsageError
from rlexp.models.memory import EpisodeMemory
from rlexp.models.network_config import Masking
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Exportable:
    """The greedy policy of one algorithm, as a torch network and as the policy's own functions."""

    network: nn.Module
    """Returns actions ``[B, ...]`` for what the policy sees ``[B, ...]``, then the arrays of ``output_names``.

    The first of these arrays decide the actions.
    """
    output_names: tuple[str, ...]
    outputs: Callable[[Array], tuple[Array, ...]]
    """The same arrays, computed by the policy; raises NotFiniteError."""
    choose: Callable[[Array], Array]
    """Returns the policy's actions ``[B, ...]`` for the first of these arrays."""
    memory: EpisodeMemory | None = None
    """The memory by which ``outputs`` are computed, if the policy is recurrent.

    The network then also takes states ``[B, S]``, and rewards ``[B]`` if it sees them. Its last array is the states
    after the actions.
    """


class SeatPlayers(ABC):
    """The players of a trial with joined actors, by index: the trial's own workers first, then their seats."""

    @property
    @abstractmethod
    def weights_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the acting weights, by name; UsageError or ModuleNotFoundError if they cannot act here."""

    @abstractmethod
    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        """Return the parts of player ``index`` beside the env; ``num_threads`` are for its forward passes."""

    def mean_epsilon(self, index: int, num_steps_sampled: int) -> float | None:
        """Return the mean ε of a player's envs after all have sampled so many env steps; None if it has none."""
        return None


@runtime_checkable
class RemembersEpisodes(Protocol):
    """A policy with a memory that others may read and replace."""

    memory: EpisodeMemory


def memory_in(policy: Policy) -> EpisodeMemory | None:
    """Return the memory of a policy; None if it has none."""
    return policy.memory if isinstance(policy, RemembersEpisodes) else None


PlayedConfigT = TypeVar("PlayedConfigT", bound=CommonConfig)


@dataclass(frozen=True)
class Policies(ABC, Generic[PlayedConfigT]):
    """The acting of one experiment; an algorithm derives a class from it.

    Importing that class loads neither torch nor Ray.
    """

    config: PlayedConfigT
    observation_space: gym.Space[Any]
    """The space of what a policy gets: a prepared observation of the env, with its action mask if it has one."""
    action_space: gym.Space[Any]
    """The space of what a policy chooses."""
    modules: UserModules = NO_MODULES
    """The user's modules, which may be imported."""

    @property
    def seen_space(self) -> gym.Space[Any]:
        """The space of what its networks see: ``observation_space`` without an action mask."""
        return seen_space(self.observation_space)

    @property
    def masking(self) -> Masking | None:
        """How its networks obey action masks; None: there are none."""
        space = self.observation_space
        return Masking(space.observation.shape, space.num_actions) if isinstance(space, MaskedSpace) else None

    @abstractmethod
    def make_policy(self) -> Policy:
        """Return a new policy that acts in this process without exploration."""

    def exploring_player(self, policy: Policy, num_envs: int, seed: int) -> ActingPolicy:
        """Return ``policy`` for evaluations that explore, in ``num_envs`` envs; by default, a greedy one."""
        return policy

    def evaluation_exploration(self) -> Mapping[str, float]:
        """Return the stats of ``exploring_player``, such as ε, by name."""
        return {}

    def seat_players(self) -> SeatPlayers:
        """Return the players of a trial with joined actors, if ``config.board_obstacle`` is None."""
        raise self._unsaid("how joined actors play", "seat_players")

    def exportable(self, policy: Policy, weights: Weights) -> Exportable:
        """Return the exportable form of ``policy`` with ``weights``; raises UsageError if it cannot be exported."""
        raise self._unsaid("how it is exported", "exportable")

    def _unsaid(self, what: str, method: str) -> UsageError:
        return UsageError(f"{type(self).__name__} does not say {what}", f"implement Policies.{method}")
