"""Whether a submitted task may be trained on this machine: what its experiment asks for, and what is allowed here.

The experiment is a stranger's. It is read by the loader of experiment files, which makes nothing but checked keys of
it; those that would reach files, servers or modules of this machine are refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rlexp.agents.board.task_demands import MOST_TRIALS, bytes_of_space, number_excess, trainer_excess
from rlexp.config.keys.experiment import Experiment, required_cpus
from rlexp.config.load import LoadOptions, Plan, load_plan
from rlexp.envs import env_config_of, spaces_of
from rlexp.errors import ConfigError, Problem, RlexpError
from rlexp.machine import Cluster, Machine, Node, this_machine
from rlexp.machine.cluster_shortfalls import cluster_shortfalls
from rlexp.machine.replay_memory import bytes_per_transition
from rlexp.machine.shortfalls import gib, shortfalls
from rlexp.transport.board import Task
from rlexp.user_code.trusted_code import Obstacle, TrustedCode

FILE_NAME: Final = "submitted.yaml"
_LONGEST_MESSAGE: Final = 300
_BESIDE_SPACES: Final = 32
"""Bytes of a transition beside observations and actions: reward, discount, priority."""
_UNLIMITED: Final = 1 << 62
_WHAT_IS_ALLOWED: Final = "--cpus and --max-memory say what tasks may use"


@dataclass(frozen=True)
class TrainerLimits:
    """What tasks may use of this machine, or of a cluster."""

    cpus: int | None = None
    """None: all that this process may use."""
    max_memory: int | None = None
    """Bytes of replay. None: the machine's memory."""
    in_cluster: bool = False
    """Whether tasks are trained in a cluster; whether that has room is found out by the run itself."""


def training_obstacle(task: Task, trusted: TrustedCode, limits: TrainerLimits) -> Obstacle | None:
    """Return why the task may not be trained here; None where it may.

    Nothing that it names is imported or made.
    """
    if not task.file:
        return Obstacle("was not submitted", "its trainer has the experiment; rlexp resume continues it there")
    try:
        plan = _plan_of(task.file, trusted)
    except ConfigError as error:
        what = "; ".join(problem.message for problem in error.problems)[:_LONGEST_MESSAGE]
        return Obstacle(f"cannot be read: {what}", "rlexp run --dry-run shows what is wrong with an experiment")
    if plan.sweeps or len(plan.trials) != 1:
        return Obstacle("is a sweep or has several variants", "submit one variant")
    experiment = plan.trials[0].experiment
    return next(_obstacles(experiment, trusted, limits), None)


def _plan_of(text: str, trusted: TrustedCode) -> Plan:
    with tempfile.TemporaryDirectory(prefix="rlexp-task-") as folder:
        file = Path(folder, FILE_NAME)
        file.write_text(text, encoding="utf-8")
        modules = trusted.modules
        options = LoadOptions(
            modules.imports, module_folders=modules.folders, packaged_agents=False, most_trials=MOST_TRIALS
        )
        return load_plan([file], options=options)


def _obstacles(experiment: Experiment, trusted: TrustedCode, limits: TrainerLimits) -> Iterator[Obstacle]:
    """Yield what keeps one experiment from being trained here."""
    config = experiment.config
    for key, reaches in (("restore", "a folder of this machine"), ("storage", "a server, with this machine's rights")):
        if getattr(experiment, key) is not None:
            yield Obstacle(f"names {reaches} with the key {key}", f"submit it without {key}")
    arguments = {**config.env_config, **config.evaluation_config.env_config}
    foreign = trusted.obstacle(experiment.env, arguments, (), experiment.config.user_parts())
    if foreign is not None:
        yield foreign
    if config.board_obstacle is not None:
        yield Obstacle(f"cannot be joined by actors: {config.board_obstacle}", "train it with rlexp run")
    excess = number_excess(experiment.model_dump(mode="json"))
    if excess is not None:
        yield Obstacle(f"asks for too much: {excess}", "submit it with a lower number")
    for problem in _shortfalls(experiment, limits):
        yield Obstacle(f"does not fit here: {problem.message}", _WHAT_IS_ALLOWED)
    excess = _excess(experiment, limits)
    if excess is not None:
        yield Obstacle(f"asks for too much: {excess}", "submit it with lower numbers")
    if limits.max_memory is not None:
        yield from _too_much_replay(experiment, trusted, limits.max_memory)


def _excess(experiment: Experiment, limits: TrainerLimits) -> str | None:
    """Return what the experiment needs beyond what is reserved for it, or than there is memory for."""
    if limits.in_cluster:
        return trainer_excess(experiment.config, limits.cpus or required_cpus(experiment), _UNLIMITED)
    machine = this_machine()
    return trainer_excess(experiment.config, limits.cpus or machine.cpus, machine.memory_total)


def _shortfalls(experiment: Experiment, limits: TrainerLimits) -> Iterator[Problem]:
    """Yield what the experiment needs beyond what it may use."""
    if limits.in_cluster:
        cpus, memory = limits.cpus or _UNLIMITED, limits.max_memory or _UNLIMITED
        resources = dict.fromkeys(experiment.config.custom_resources_per_worker, float(_UNLIMITED))
        return cluster_shortfalls(
            experiment, Cluster((Node("", Machine(cpus, _UNLIMITED, memory, memory), resources),))
        )
    machine = this_machine()
    allowed = replace(
        machine,
        cpus=machine.cpus if limits.cpus is None else min(limits.cpus, machine.cpus),
        memory_total=min(limits.max_memory or machine.memory_total, machine.memory_total),
    )
    return shortfalls(experiment, allowed)


def _too_much_replay(experiment: Experiment, trusted: TrustedCode, max_memory: int) -> Iterator[Obstacle]:
    """Yield an obstacle where replay needs more than is allowed by the env's own spaces; the env is made."""
    replay = experiment.config.replay
    if replay is None or bytes_per_transition(experiment) is not None:
        return
    try:
        observations, actions = spaces_of(env_config_of(experiment.env, experiment.config, trusted.modules))
    except RlexpError as error:
        yield Obstacle(f"plays an env that cannot be made here: {error.message}", error.hint or "")
        return
    needed = replay.capacity * (2 * bytes_of_space(observations) + bytes_of_space(actions) + _BESIDE_SPACES)
    if needed > max_memory:
        yield Obstacle(f"may need {gib(needed)} for replay, and {gib(max_memory)} are allowed", _WHAT_IS_ALLOWED)
