"""Agents that installed packages bring by entry points of the group ``rlexp.agents``.

The name of an entry point is what ``run`` names, in any case; its value is the class of the agent's experiments::

    [project.entry-points."rlexp.agents"]
    CQL = "my_cql.keys:CQLExperiment"

It is imported once a file names it, and only from packages that are installed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args, get_origin

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.errors import UsageError

GROUP: Final = "rlexp.agents"

INSTALLED_IN: tuple[str, ...] = tuple(path for path in sys.path if path not in ("", str(Path.cwd())))
"""Where packages are looked for: without the folders of experiments and runs, which come to ``sys.path`` later."""


@dataclass(frozen=True)
class PackagedAgent:
    """An entry point, and who brings it."""

    name: str
    """The agent's name, as its package spells it."""
    value: str
    """``package.module:Class`` of its experiments."""
    packages: tuple[str, ...]
    """The packages that have an entry point of this name, as pip knows them; usually one."""

    @property
    def known_as(self) -> str:
        """What messages call it."""
        return f"agent {self.name} of the package {self.packages[0]}"


@cache
def packaged_agents(path: tuple[str, ...]) -> Mapping[str, PackagedAgent]:
    """Return the agents of all packages that are installed in the folders of ``path``, by name in capital letters."""
    found: dict[str, PackagedAgent] = {}
    packages: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = distribution.metadata["Name"]
        if package is None or package in packages:  # the first in the path is the one that is imported
            continue
        packages.add(package)
        for entry in distribution.entry_points.select(group=GROUP):
            first = found.get(entry.name.upper())
            others = () if first is None else first.packages
            found[entry.name.upper()] = PackagedAgent(entry.name, entry.value, (*others, package))
    return MappingProxyType(found)


@cache
def experiment_of(agent: PackagedAgent) -> type[Experiment]:
    """Import the class of an agent's experiments; raises UsageError where a package has none that can be used."""
    if len(agent.packages) > 1:
        message = f"agent {agent.name} is in several packages: {', '.join(agent.packages)}"
        raise UsageError(message, f"pip uninstall all but one: {' or '.join(agent.packages)}")
    hint = f"its entry point {agent.name} = {agent.value} must name a class derived from rlexp's Experiment"
    try:
        found = EntryPoint(agent.name, agent.value, GROUP).load()
    except Exception as error:  # the code of a package may raise anything
        message = f"{agent.known_as} cannot be imported: {type(error).__name__}: {error}"
        raise UsageError(message, f"pip install --upgrade {agent.packages[0]}, or ask its authors") from error
    if not isinstance(found, type) or not issubclass(found, Experiment):
        raise UsageError(f"{agent.known_as}: {agent.value} is no class of experiments", hint)
    problem = _problem(found, agent.name)
    if problem is not None:
        raise UsageError(f"{agent.known_as}: {problem}", hint)
    return found


def _problem(experiment: type[Experiment], name: str) -> str | None:
    """Return what is wrong with a class of experiments, None where nothing is."""
    run, config = (experiment.model_fields[key].annotation for key in ("run", "config"))
    if get_origin(run) is not Literal or get_args(run) != (name,):
        return f'{experiment.__name__} must have the field run: Literal["{name}"]'
    module, colon, agent_class = str(getattr(experiment, "AGENT", "")).partition(":")
    if not (module and colon and agent_class):
        return f"{experiment.__name__} must have AGENT: package.module:Class of what trains it"
    if not isinstance(config, type) or not issubclass(config, CommonConfig):
        return f"the field config of {experiment.__name__} must be a class of keys derived from CommonConfig"
    return None
