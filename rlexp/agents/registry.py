"""The class that trains an experiment, imported when it is needed: it loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlexp.config.keys.experiment import Experiment

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent


def agent_class(experiment: Experiment) -> type[Agent[Any]]:
    """Return the agent that ``experiment.AGENT`` names."""
    module, _, name = experiment.AGENT.partition(":")
    found: type[Agent[Any]] = getattr(import_module(module), name)
    return found
