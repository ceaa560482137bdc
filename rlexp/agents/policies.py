"""Policies: how an algorithm acts outside of training: in evaluations, from checkpoints, in exports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gymnasium as gym

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_modules import NO_MODULES, UserModules
from rlexp.errors import UsageError
from rlexp.policy import Policy, Weights
from rlexp.rollout.evaluation import ActingPolicy

if TYPE_CHECKING:
    from rlexp.agents.export.exportable import Exportable

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
