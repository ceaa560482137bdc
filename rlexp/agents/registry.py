"""What trains and what plays an experiment, each imported when it is needed: what trains loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from rlexp.agents.policies import Policies
from rlexp.config.keys.experiment import Experiment
from rlexp.errors import UsageError

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent

_HINT: Final = "correct AGENT of its class of experiments, or the package that brings it"


def agent_class(experiment: Experiment) -> type[Agent[Any]]:
    """Return the agent that ``experiment.AGENT`` names; raises UsageError where that of a package is none."""
    from rlexp.agents.agent import Agent  # it loads torch, which players of checkpoints may not need

    found = _found(experiment, experiment.AGENT)
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise UsageError(f"agent {experiment.run}: {experiment.AGENT} is no class of agents", _HINT)
    return found


def policies_of(experiment: Experiment) -> type[Policies[Any]]:
    """Return what plays an experiment's checkpoints: ``POLICIES``, without torch, where they are its agent's."""
    owner = next(kind for kind in type(experiment).__mro__ if "POLICIES" in vars(kind))
    if not experiment.POLICIES or vars(owner).get("AGENT") != experiment.AGENT:  # another agent derives from it
        return agent_class(experiment).POLICIES
    return cast("type[Policies[Any]]", _found(experiment, experiment.POLICIES))


def _found(experiment: Experiment, name: str) -> object:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module_name), attribute, None)
    except ImportError as error:
        raise UsageError(f"agent {experiment.run}: {module_name} cannot be imported: {error}", _HINT) from error
