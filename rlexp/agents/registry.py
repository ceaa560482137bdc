"""The classes that train and play an experiment, each imported when it is needed, as training loads torch."""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Final

from rlexp.agents.policies import Policies
from rlexp.config.keys.experiment import Experiment
from rlexp.errors import UsageError

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent

_HINT: Final = "correct AGENT of its class of experiments, or the package that brings it"


def agent_class(experiment: Experiment) -> type[Agent[Any]]:
    """Return the agent that ``experiment.AGENT`` names; raises UsageError if a package's agent cannot be used."""
    from rlexp.agents.agent import Agent  # it loads torch, which checkpoint players may not need

    found = _found(experiment, experiment.AGENT)
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise UsageError(
            f"agent {experiment.run}: {experiment.AGENT} is not a subclass of rlexp.agents.agent.Agent", _HINT
        )
    _refuse_methods_of_policies(experiment, found)
    played = _checked_policies(experiment, f"{experiment.AGENT}.POLICIES", getattr(found, "POLICIES", None))
    named = _named_policies(experiment)
    if named is not None and named is not played:  # evaluations and checkpoints would play different policies
        message = f"agent {experiment.run}: its experiment has the POLICIES {experiment.POLICIES}, but"
        raise UsageError(
            f"{message} {experiment.AGENT} has {played.__module__}:{played.__qualname__}", "name the same class in both"
        )
    return found


def policies_of(experiment: Experiment) -> type[Policies[Any]]:
    """Return the class that plays an experiment's checkpoints: ``POLICIES``, without torch, if they are its agent's.

    Raises UsageError if a package's policies cannot be used.
    """
    return _named_policies(experiment) or agent_class(experiment).POLICIES


def _named_policies(experiment: Experiment) -> type[Policies[Any]] | None:
    """Return the class that ``experiment.POLICIES`` names; None if it is inherited from another agent's experiment."""
    for kind in type(experiment).__mro__:
        if "POLICIES" in vars(kind):
            break
        if "AGENT" in vars(kind):  # nearer than POLICIES, which belong to the agent of the base class
            return None
    if not experiment.POLICIES:
        return None
    return _checked_policies(experiment, experiment.POLICIES, _found(experiment, experiment.POLICIES))


def _checked_policies(experiment: Experiment, name: str, found: object) -> type[Policies[Any]]:
    if isinstance(found, type) and issubclass(found, Policies):
        return found
    raise UsageError(
        f"agent {experiment.run}: {name} is not a subclass of rlexp.agents.policies.Policies",
        "it says how the agent acts in evaluations, from checkpoints and in exports",
    )


def _refuse_methods_of_policies(experiment: Experiment, agent: type[Agent[Any]]) -> None:
    """Raise UsageError for methods of ``Policies`` in an agent class, as they would never be called."""
    methods = [name for name, value in vars(Policies).items() if isfunction(value) and not name.startswith("_")]
    misplaced = [name for name in methods if hasattr(agent, name)]
    if misplaced:
        raise UsageError(
            f"agent {experiment.run}: {experiment.AGENT} has {', '.join(misplaced)}, which an agent's Policies have",
            "move them into a subclass of rlexp.agents.policies.Policies, and name it as POLICIES",
        )


def _found(experiment: Experiment, name: str) -> object:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module_name), attribute, None)
    except ImportError as error:
        raise UsageError(f"agent {experiment.run}: {module_name} cannot be imported: {error}", _HINT) from error
