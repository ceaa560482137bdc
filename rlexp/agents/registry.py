"""What trains and what plays an experiment, each imported when it is needed: what trains loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import gymnasium as gym

from rlexp.config.keys.experiment import Experiment
from rlexp.policy import Policy
from rlexp.rollout.evaluation import ActingPolicy

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent


class Policies(Protocol):
    """How an agent's checkpoints are played; each agent has the same methods."""

    def make_policy(self, config: Any, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Policy:
        """Return a new policy for an env's spaces that acts in this process, without exploration."""
        ...

    def exploring_player(
        self, config: Any, policy: Policy, action_space: gym.Space[Any], num_envs: int, seed: int
    ) -> ActingPolicy:
        """Return ``policy`` as it acts in evaluations that explore, in ``num_envs`` envs."""
        ...

    def evaluation_exploration(self, config: Any) -> Mapping[str, float]:
        """Return the figures of ``exploring_player``, such as ε, by name."""
        ...


def agent_class(experiment: Experiment) -> type[Agent[Any]]:
    """Return the agent that ``experiment.AGENT`` names."""
    return cast("type[Agent[Any]]", _found(experiment.AGENT))


def policies_of(experiment: Experiment) -> Policies:
    """Return what plays an experiment's checkpoints: ``experiment.POLICIES``, without torch; else its agent."""
    return cast(Policies, _found(experiment.POLICIES or experiment.AGENT))


def _found(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
