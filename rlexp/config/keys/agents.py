"""The agents: our own, a line each and a file with its keys, and those that installed packages bring.

The name of an entry point of the group ``rlexp.agents`` is what ``run`` names, in any case; its value is the class of
the agent's experiments::

    [project.entry-points."rlexp.agents"]
    CQL = "my_cql.keys:CQLExperiment"

It is imported once a file names it, and only from packages that are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

from rlexp.config.keys.user_code import PackageEntry, entry_points
from rlexp.errors import UsageError

if TYPE_CHECKING:
    from rlexp.config.keys.experiment import Experiment

GROUP: Final = "rlexp.agents"


def packaged_agents() -> Mapping[str, PackageEntry]:
    """Return the agents of all packages that are installed, by name in capital letters."""
    return entry_points(GROUP, str.upper)


@cache
def experiment_of(agent: PackageEntry) -> type[Experiment]:
    """Import the class of an agent's experiments; raises UsageError if a package has no usable one."""
    from importlib.metadata import EntryPoint

    from rlexp.config.keys.experiment import Experiment

    if len(agent.packages) > 1:
        message = f"agent {agent.name} is in several packages: {', '.join(agent.packages)}"
        raise UsageError(message, f"pip uninstall all but one: {' or '.join(agent.packages)}")
    known_as = f"agent {agent.name} of the package {agent.package}"
    hint = f"its entry point {agent.name} = {agent.value} must name a class derived from rlexp's Experiment"
    try:
        found = EntryPoint(agent.name, agent.value, GROUP).load()
    except Exception as error:  # the code of a package may raise anything
        message = f"{known_as} cannot be imported: {type(error).__name__}: {error}"
        raise UsageError(message, f"pip install --upgrade {agent.package}, or ask its authors") from error
    if not isinstance(found, type) or not issubclass(found, Experiment):
        raise UsageError(f"{known_as}: {agent.value} is not a subclass of Experiment", hint)
    problem = _problem(found, agent.name)
    if problem is not None:
        raise UsageError(f"{known_as}: {problem}", hint)
    return found


def _problem(experiment: type[Experiment], name: str) -> str | None:
    """Return the problem of a class of experiments; None if there is none."""
    from rlexp.config.keys.common import CommonConfig

    run, config = (experiment.model_fields[key].annotation for key in ("run", "config"))
    if get_origin(run) is not Literal or get_args(run) != (name,):
        return f'{experiment.__name__} must have the field run: Literal["{name}"]'
    module, colon, agent_class = str(getattr(experiment, "AGENT", "")).partition(":")
    if not (module and colon and agent_class):
        return f"{experiment.__name__} must have AGENT: package.module:Class of what trains it"
    if not isinstance(config, type) or not issubclass(config, CommonConfig):
        return f"the field config of {experiment.__name__} must be a class of keys derived from CommonConfig"
    return None


_CLASSES: Final = {
    "DQN": "dqn:DQNExperiment",
    "APEX": "apex:ApexExperiment",
    "PPO": "ppo:PPOExperiment",
    "PQN": "pqn:PQNExperiment",
    "A2C": "a2c:A2CExperiment",
    "A3C": "a2c:A3CExperiment",
    "PG": "a2c:PGExperiment",
    "SIMPLEQ": "dqn:SimpleQExperiment",
    "DDPPO": "ppo:DDPPOExperiment",
    "DDPG": "ddpg:DDPGExperiment",
    "TD3": "ddpg:TD3Experiment",
    "APEX_DDPG": "ddpg:ApexDDPGExperiment",
    "SAC": "sac:SACExperiment",
    "IMPALA": "impala:IMPALAExperiment",
    "APPO": "impala:APPOExperiment",
    "ES": "evolution:ESExperiment",
    "ARS": "evolution:ARSExperiment",
    "R2D2": "r2d2:R2D2Experiment",
    "APEX_R2D2": "r2d2:ApexR2D2Experiment",
}
"""Where the models of our own agents are: a file of this folder, and a class."""


class _OwnAgents(Mapping[str, "type[Experiment]"]):
    """The models by agent; each is imported when it is first needed, which takes a shell's completion less time."""

    def __getitem__(self, name: str) -> type[Experiment]:
        module, _, model = _CLASSES[name].partition(":")
        found: type[Experiment] = getattr(import_module(f"rlexp.config.keys.{module}"), model)
        return found

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


AGENTS: Final[Mapping[str, type[Experiment]]] = _OwnAgents()
"""Our own agents, and the models of their experiments."""


def find_agent(name: str) -> str | None:
    """Return the models' spelling of an agent's name in any case; None if there is none.

    Packages are searched only for a name that is not ours, and none is imported.
    """
    if name.upper() in AGENTS:
        return name.upper()
    found = packaged_agents().get(name.upper())
    return None if found is None else found.name


def experiment_class(run: str) -> type[Experiment]:
    """Return the model of an agent's experiments, by the name that ``find_agent`` returns.

    Raises KeyError for an unknown agent, UsageError if a package's agent cannot be used.
    """
    if run in AGENTS:
        return AGENTS[run]
    return experiment_of(packaged_agents()[run.upper()])


def agents_of_packages() -> tuple[str, ...]:
    """Return the names of the agents of packages, apart from our own names."""
    found = packaged_agents()
    return tuple(sorted(agent.name for name, agent in found.items() if name not in AGENTS))


def built_in_base(run: str) -> str | None:
    """Return the agent of ours that ``run`` is or derives its experiments from; None if there is none."""
    model = experiment_class(run)
    return next((name for name, own in AGENTS.items() if issubclass(model, own)), None)
