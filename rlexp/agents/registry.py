"""The class that trains an experiment, imported when it is needed: it loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rlexp.agents.agent import Agent
from rlexp.config.keys.experiment import Experiment
from rlexp.errors import UsageError


def agent_class(experiment: Experiment) -> type[Agent[Any]]:
    """Return the agent that ``experiment.AGENT`` names; raises UsageError where that of a package is none."""
    module_name, _, name = experiment.AGENT.partition(":")
    hint = "correct AGENT of its class of experiments, or the package that brings it"
    try:
        found = getattr(import_module(module_name), name, None)
    except ImportError as error:
        message = f"agent {experiment.run}: {module_name} cannot be imported: {error}"
        raise UsageError(message, hint) from error
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise UsageError(f"agent {experiment.run}: {experiment.AGENT} is no class of agents", hint)
    return found
