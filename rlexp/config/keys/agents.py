"""The agents: our own, a line each and a file with its keys, and those that installed packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rlexp.config.keys.agent_packages import experiment_of, packaged_agents
from rlexp.config.keys.apex import ApexExperiment
from rlexp.config.keys.dqn import DQNExperiment
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.ppo import PPOExperiment

AGENTS: Mapping[str, type[Experiment]] = MappingProxyType(
    {
        "DQN": DQNExperiment,
        "APEX": ApexExperiment,
        "PPO": PPOExperiment,
    }
)
"""Our own, and the models of their experiments."""


def find_agent(name: str) -> str | None:
    """Return how the models spell the name of an agent in any case; None where there is none.

    Packages are looked at only for a name that is none of ours, and none is imported.
    """
    if name.upper() in AGENTS:
        return name.upper()
    found = packaged_agents().get(name.upper())
    return None if found is None else found.name


def experiment_class(run: str) -> type[Experiment]:
    """Return the model of an agent's experiments, by the name that ``find_agent`` returns.

    Raises KeyError for an agent that there is not, UsageError where a package's agent cannot be used.
    """
    if run in AGENTS:
        return AGENTS[run]
    return experiment_of(packaged_agents()[run.upper()])


def agents_of_packages() -> tuple[str, ...]:
    """Return the names of the agents that packages bring, apart from those that are ours."""
    found = packaged_agents()
    return tuple(sorted(agent.name for name, agent in found.items() if name not in AGENTS))


def built_in_base(run: str) -> str | None:
    """Return the agent of ours that ``run`` is, or whose experiments its own derive from; None where it has none."""
    model = experiment_class(run)
    return next((name for name, own in AGENTS.items() if issubclass(model, own)), None)
