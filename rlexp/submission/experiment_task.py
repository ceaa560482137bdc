"""An experiment as a task: what can be submitted, its text on the board, and the plan that a task's text makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rlexp.agents.board.joinable import joinable_trial, new_task_id
from rlexp.agents.board.task_demands import MOST_TRIALS
from rlexp.config.keys.tracking import TrackConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, Plan, load_plan, resolved_yaml
from rlexp.config.plan import refuse_sweeps
from rlexp.config.space.grid import TRACK
from rlexp.errors import ConfigError, TrialError, UsageError
from rlexp.runs.secrets import masked
from rlexp.transport.board import Task
from rlexp.user_code.trusted_code import TrustedCode

_WITHOUT: Final = "train it with rlexp run"
_ON_THIS_MACHINE: Final = {
    "restore": "is a folder of this machine, and the trainer is another one",
    "storage": "would be written by the trainer, with the rights of its machine",
}
"""Keys beside ``config`` that mean something else where the trainer is, and why."""


@dataclass(frozen=True)
class SubmittedTask:
    """A task, and the only trial of the plan that its text makes."""

    task: Task
    plan: Plan
    trial: Trial
    source: str
    """The experiment file as its user wrote it; the text on the board where that is all there is."""

    @property
    def resolved(self) -> str:
        """The experiment with every key and its seed, as its run keeps it: with the trackers of this user only."""
        return resolved_yaml(self.plan)


def task_of(plan: Plan) -> SubmittedTask:
    """Return the task of a plan's only trial; raises UsageError, with the reason, where it cannot be submitted."""
    refuse_sweeps(plan)
    trial = joinable_trial(plan.trials, _WITHOUT)
    for key, reason in _ON_THIS_MACHINE.items():
        if getattr(trial.experiment, key) is not None:
            raise UsageError(f"{key} {reason}", f"leave it out with -o {key}=null, or {_WITHOUT}")
    secret = next(_secrets({each.name: each.resolved for each in plan.experiments}), None)
    if secret is not None:
        message = f"{secret} is a secret, and everybody who can read the board would have it"
        raise UsageError(message, f"let the env read it from the environment of its machine, or {_WITHOUT}")
    name, config = trial.experiment.name, trial.experiment.config
    assert config.board_keys is not None  # joinable_trial has refused the others
    task = Task(new_task_id(name), name, config.board_keys.actors, file=resolved_yaml(_without_trackers(plan)))
    return SubmittedTask(task, plan, trial, plan.sources[0].read_text(encoding="utf-8"))


def _without_trackers(plan: Plan) -> Plan:
    """Return the plan as it passes a board: trackers are those of the user who submits, and of nobody who reads it."""
    experiments = tuple(
        replace(each, resolved={key: value for key, value in each.resolved.items() if key != TRACK})
        for each in plan.experiments
    )
    untracked = {"track": TrackConfig()}
    trials = tuple(replace(trial, experiment=trial.experiment.model_copy(update=untracked)) for trial in plan.trials)
    return replace(plan, experiments=experiments, trials=trials, tracker_places=())


def task_on_board(task: Task, trusted: TrustedCode) -> SubmittedTask:
    """Return what the text of a task makes; raises UsageError where nobody has submitted it, or it names foreign code.

    The text is whatever the board says, and the run that is made for it may be evaluated and resumed on this machine
    later: in the env that it names, and with the places that it names.
    """
    if not task.file:
        raise UsageError(f"task {task.id} was not submitted: it is trained by rlexp run --board", "see its results")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "task.yaml"
        path.write_text(task.file, encoding="utf-8")
        try:
            options = LoadOptions(module_folders=(), packaged_agents=False, most_trials=MOST_TRIALS)
            plan = _without_trackers(load_plan([path], options=options))
        except ConfigError as error:
            raise TrialError(
                f"task {task.id} has a file that this rlexp cannot read", "use the version that submitted it"
            ) from error
    trial = joinable_trial(plan.trials, _WITHOUT)
    experiment = trial.experiment
    arguments = {**experiment.config.env_config, **experiment.config.evaluation_config.env_config}
    for key in _ON_THIS_MACHINE:
        if getattr(experiment, key) is not None:
            raise UsageError(f"task {task.id} has the key {key}, which rlexp submit refuses", "ask who put it there")
    obstacle = trusted.obstacle(experiment.env, arguments, plan.modules.imports, experiment.config.user_parts())
    if obstacle is not None:
        raise UsageError(f"task {task.id} {obstacle.message}", obstacle.hint)
    return SubmittedTask(task, plan, trial, task.file)


def described(task: Task | None, task_id: str) -> Task:
    """Return ``task``; raises UsageError where the board had none."""
    if task is None:
        raise UsageError(f"task {task_id} is not on the board", "rlexp tasks lists those that are")
    return task


def _secrets(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values :func:`~rlexp.runs.secrets.masked` hides."""
    hidden = masked(value)
    if hidden == value:
        return
    if not isinstance(value, Mapping):
        yield path
        return
    for key, item in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(item, Mapping) and isinstance(hidden[key], Mapping):
            yield from _secrets(item, inner)
        elif hidden[key] != item:
            yield inner
