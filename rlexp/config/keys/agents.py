"""The agents: our own, a line each and a file with its keys, and those that installed packages bring.

The name of an entry point of the group ``rlexp.agents`` is what ``run`` names, in any case; its value is the class of
the agent's experiments::

    [project.entry-points."rlexp.agents"]
    CQL = "my_cql.keys:CQLExperiment"

It is imported once a file names it, and only from packages that are installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, Literal, get_args, get_origin

from rlexp.config.keys.a2c import A2CExperiment, A3CExperiment, PGExperiment
from rlexp.config.keys.apex import ApexExperiment
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.ddpg import ApexDDPGExperiment, DDPGExperiment, TD3Experiment
from rlexp.config.keys.dqn import DQNExperiment, SimpleQExperiment
from rlexp.config.keys.evolution import ARSExperiment, ESExperiment
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.impala import APPOExperiment, IMPALAExperiment
from rlexp.config.keys.ppo import DDPPOExperiment, PPOExperiment
from rlexp.config.keys.pqn import PQNExperiment
from rlexp.config.keys.r2d2 import ApexR2D2Experiment, R2D2Experiment
from rlexp.config.keys.sac import SACExperiment
from rlexp.config.keys.user_code import PackageEntry, entry_points
from rlexp.errors import UsageError

GROUP: Final = "rlexp.agents"


def packaged_agents() -> Mapping[str, PackageEntry]:
    """Return the agents of all packages that are installed, by name in capital letters."""
    return entry_points(GROUP, str.upper)


@cache
def experiment_of(agent: PackageEntry) -> type[Experiment]:
    """Import the class of an agent's experiments; raises UsageError if a package has no usable one."""
    from importlib.metadata import EntryPoint

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
    run, config = (experiment.model_fields[key].annotation for key in ("run", "config"))
    if get_origin(run) is not Literal or get_args(run) != (name,):
        return f'{experiment.__name__} must have the field run: Literal["{name}"]'
    module, colon, agent_class = str(getattr(experiment, "AGENT", "")).partition(":")
    if not (module and colon and agent_class):
        return f"{experiment.__name__} must have AGENT: package.module:Class of what trains it"
    if not isinstance(config, type) or not issubclass(config, CommonConfig):
        return f"the field config of {experiment.__name__} must be a class of keys derived from CommonConfig"
    return None


AGENTS: Mapping[str, type[Experiment]] = MappingProxyType(
    {
        "DQN": DQNExperiment,
        "APEX": ApexExperiment,
        "PPO": PPOExperiment,
        "PQN": PQNExperiment,
        "A2C": A2CExperiment,
        "A3C": A3CExperiment,
        "PG": PGExperiment,
        "SIMPLEQ": SimpleQExperiment,
        "DDPPO": DDPPOExperiment,
        "DDPG": DDPGExperiment,
        "TD3": TD3Experiment,
        "APEX_DDPG": ApexDDPGExperiment,
        "SAC": SACExperiment,
        "IMPALA": IMPALAExperiment,
        "APPO": APPOExperiment,
        "ES": ESExperiment,
        "ARS": ARSExperiment,
        "R2D2": R2D2Experiment,
        "APEX_R2D2": ApexR2D2Experiment,
    }
)
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
