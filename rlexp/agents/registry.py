"""What trains and what plays an experiment, each imported when it is needed: what trains loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import gymnasium as gym

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_modules import UserModules
from rlexp.errors import UsageError
from rlexp.policy import Policy
from rlexp.rollout.evaluation import ActingPolicy

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent

_HINT: Final = "correct AGENT of its class of experiments, or the package that brings it"


class Policies(Protocol):
    """How an agent's checkpoints are played; each agent has the same methods."""

    def make_policy(
        self, config: Any, observation_space: gym.Space[Any], action_space: gym.Space[Any], modules: UserModules
    ) -> Policy:
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
    """Return the agent that ``experiment.AGENT`` names; raises UsageError where that of a package is none."""
    from rlexp.agents.agent import Agent  # it loads torch, which players of checkpoints may not need

    found = _found(experiment, experiment.AGENT)
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise UsageError(f"agent {experiment.run}: {experiment.AGENT} is no class of agents", _HINT)
    return found


def policies_of(experiment: Experiment) -> Policies:
    """Return what plays an experiment's checkpoints: ``POLICIES``, without torch, where they are its agent's."""
    owner = next(kind for kind in type(experiment).__mro__ if "POLICIES" in vars(kind))
    if not experiment.POLICIES or vars(owner).get("AGENT") != experiment.AGENT:  # another agent derives from it
        return cast(Policies, agent_class(experiment))
    return cast(Policies, _found(experiment, experiment.POLICIES))


def _found(experiment: Experiment, name: str) -> object:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module_name), attribute, None)
    except ImportError as error:
        raise UsageError(f"agent {experiment.run}: {module_name} cannot be imported: {error}", _HINT) from error
