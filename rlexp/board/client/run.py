"""An experiment as a task on a board and as a run here: what can be submitted, and what is stored of its training.

A SubmittedTask is made from a plan, or from a task's text. A TaskRun is its run directory. It looks like a run of this
machine, with the checkpoint that its trainer leaves on the board.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from rlexp.board.messages.basics import MAX_BLOB_BYTES, Task
from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.board.task import board_keys_of, joinable_trial, new_task_id, submitted_plan
from rlexp.config.grid import TRACK
from rlexp.config.keys.experiment import TrackConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, refuse_sweeps, resolved_yaml
from rlexp.errors import ConfigError, ResumeError, TrialError, UsageError
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.checkpoint_contents import MANIFEST, Manifest, write_manifest
from rlexp.runs.checkpoints import unpack_checkpoint
from rlexp.runs.record import RecordedError, Status, read_run_record
from rlexp.runs.recorders import RunTrackers, TrialRecorder
from rlexp.runs.rows import checkpoint_row, last_row
from rlexp.runs.run_directory import RunDirectory, trial_parameters
from rlexp.search.standings import Display
from rlexp.text import masked
from rlexp.user_code.trusted_code import TrustedCode

_WITHOUT: Final = "train it with rlexp run"
_ON_THIS_MACHINE: Final = {
    "restore": "is a folder of this machine, and the trainer is another one",
    "storage": "would be written by the trainer, with the rights of its machine",
}
"""Keys beside ``config`` that have another meaning on the trainer's machine, and why."""
STATUSES: Final = {
    TaskStatus.ENDED: Status.TERMINATED,
    TaskStatus.FAILED: Status.ERROR,
    TaskStatus.CANCELLED: Status.STOPPED,
}
"""The status of a run for each end of its task."""


@dataclass(frozen=True)
class SubmittedTask:
    """A task, and the only trial of the plan of its text."""

    task: Task
    plan: Plan
    trial: Trial
    source: str
    """The experiment file as its user wrote it; the text on the board if there is no other."""

    @property
    def resolved(self) -> str:
        """The experiment with every key and its seed, as its run stores it, with only this user's trackers."""
        return resolved_yaml(self.plan)


def task_of(plan: Plan) -> SubmittedTask:
    """Return the task of a plan's only trial; raises UsageError with the reason if it cannot be submitted."""
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
    task = Task(new_task_id(name), name, board_keys_of(config).actors, file=resolved_yaml(_without_trackers(plan)))
    return SubmittedTask(task, plan, trial, plan.sources[0].read_text(encoding="utf-8"))


def _without_trackers(plan: Plan) -> Plan:
    """Return the plan for a board: without trackers, as those belong to the submitting user only."""
    experiments = tuple(
        replace(each, resolved={key: value for key, value in each.resolved.items() if key != TRACK})
        for each in plan.experiments
    )
    untracked = {"track": TrackConfig()}
    trials = tuple(replace(trial, experiment=trial.experiment.model_copy(update=untracked)) for trial in plan.trials)
    return replace(plan, experiments=experiments, trials=trials, tracker_places=())


def task_on_board(task: Task, trusted: TrustedCode) -> SubmittedTask:
    """Return the task that a text describes; raises UsageError if nobody submitted it, or it names foreign code.

    The board may return any text. The run made for it may be evaluated and resumed on this machine later, in the env
    and with the paths that the text names.
    """
    if not task.file:
        raise UsageError(f"task {task.id} was not submitted: it is trained by rlexp run --board", "see its results")
    try:
        plan = _without_trackers(submitted_plan(task))
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


def _secrets(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values :func:`~rlexp.text.masked` hides."""
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


@dataclass(frozen=True)
class RunPlace:
    """The place of a run, and the options with which it was asked for."""

    out: Path
    name: str | None
    overwrite: bool
    command: Sequence[str]
    board: str | None = None
    """The server of the board with its task."""


class TaskRun:
    """Owns the directory and the recorders of one task's run, from ``create`` or ``reopen`` on; a context manager."""

    def __init__(self, directory: RunDirectory, submitted: SubmittedTask, display: Display) -> None:
        """Use :meth:`create` or :meth:`reopen`."""
        self.directory = directory
        self._submitted, self._trial, self._display = submitted, submitted.trial, display
        self._folder = directory.trial_directory(self._trial)
        self._recorder = TrialRecorder(
            self._folder,
            trial_parameters(self._trial),
            (),
            self._trial.experiment.config.AGENT_COLUMNS,
            directory.trackers_of(self._trial),
        )
        self.last_row = last_row(self._folder)
        self._evaluation: Mapping[str, Any] | None = None
        self._held: dict[str, Any] | None = None
        directory.trial_status(self._trial, Status.RUNNING)

    @classmethod
    def create(
        cls, submitted: SubmittedTask, place: RunPlace, display: Display, trackers: RunTrackers | None = None
    ) -> TaskRun:
        """Make the directory; raises as ``RunDirectory.create`` does. ``trackers`` belong to this command's user."""
        usual_name = submitted.trial.experiment.name
        directory = RunDirectory.create(place.out, usual_name, place.name, place.command, overwrite=place.overwrite)
        directory.trackers = trackers or directory.trackers
        try:
            directory.write_experiments([submitted.source], submitted.resolved)
            directory.start([submitted.trial], submitted.plan.modules)
            record = directory.record.trial(submitted.trial.name)
            record.board_task, record.board = submitted.task.id, place.board
            directory.write()
            return cls(directory, submitted, display)
        except BaseException:
            directory.discard()
            raise

    @classmethod
    def reopen(cls, path: Path, submitted: SubmittedTask, display: Display) -> TaskRun:
        """Continue a run that was left; raises ResumeError if it is in use or damaged."""
        directory = RunDirectory.open(path)
        try:
            if not directory.record.knows(submitted.trial.name):
                message = f"{path} is not the run of task {submitted.task.id}"
                raise UsageError(message, "choose another --out or --name")
            directory.restart([submitted.trial])
            return cls(directory, submitted, display)
        except BaseException:
            directory.close()
            raise

    @property
    def is_empty(self) -> bool:
        return self.directory.is_new and self.last_row is None and self._held is None

    @property
    def wants_checkpoint(self) -> bool:
        return self._trial.experiment.checkpoint_at_end

    def begin(self) -> None:
        """Show the path of the run."""
        self._display.start(self.directory.path, [self._trial])
        self._display.on_trial_start(self._trial)

    def record(self, row: dict[str, Any]) -> None:
        """Record a result row of the trainer, with this process's evaluation if the row has none."""
        self._record_held()
        evaluation, self._evaluation = self._evaluation, None
        row = {**row, "trial_name": self._trial.name}
        if evaluation is not None:
            row = {"evaluation": dict(evaluation), **row}
        self._recorder.record(row)
        self.last_row = row
        self.directory.trial_result(self._trial, row)
        self._display.on_result(self._trial, row)
        self._note_all(self.directory.trackers.drain_notes())

    def hold(self, row: dict[str, Any]) -> None:
        """Record a row with the next one, or at the end, as an unfinished evaluation may belong to it."""
        self._record_held()
        self._held = row

    def add_evaluation(self, figures: Mapping[str, Any]) -> None:
        """Store an evaluation for the next row that is recorded."""
        self._evaluation = figures

    def add_result(self, content: bytes, key: bytes) -> None:
        """Store the checkpoint that the trainer packed at the end; raises CheckpointError if it is not valid.

        ``key`` is the task's. The metadata is what was submitted here: ``rlexp evaluate`` never imports an env or
        module that a trainer names.
        """
        modules = self._submitted.plan.modules

        def describe(received: Path, manifest: Manifest) -> None:
            row = checkpoint_row(received, manifest.metadata)
            metadata = {
                "experiment": self._trial.experiment.model_dump(mode="json"),
                "imports": list(modules.imports),
                "module_folders": list(modules.folders),
                "metrics": None if row is None else {**row, "trial_name": self._trial.name},
            }
            (received / MANIFEST).unlink()
            write_manifest(received, manifest.sequence, metadata)

        path = unpack_checkpoint(content, self._folder, key, MAX_BLOB_BYTES, describe)
        self.directory.trial_checkpoint(self._trial, path, self.last_row or {})

    def finish(self, summary: TaskSummary, problem: str | None = None) -> None:
        """Record and show how the task ended. ``problem`` says why its run failed all the same."""
        self._record_held()
        status = Status.ERROR if problem else STATUSES[summary.status]
        reason = problem or summary.reason or None
        failed = status is Status.ERROR
        error = RecordedError(reason or "the trainer gives no reason") if failed else None
        self._recorder.end(status, None)
        self.directory.trial_status(self._trial, status, error, None if failed else reason)
        self.directory.finish(status)
        self._note_all(self.directory.trackers.finish())
        self._display.on_trial_end(self._trial, status, reason)
        self._display.finish(self.directory.record)

    def leave(self) -> None:
        """End while the task continues; a run without any result is removed."""
        self._record_held()
        if self.is_empty:
            self.close()
            self.directory.discard()
        else:
            self.directory.finish(Status.STOPPED)

    def close(self) -> None:
        """Close the files; idempotent."""
        self._recorder.close()
        self.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _note_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._display.on_note(None, text)

    def _record_held(self) -> None:
        row, self._held = self._held, None
        if row is not None:
            self.record(row)


def run_of_task(place: RunPlace, task_id: str) -> Path | None:
    """Return the run in ``place.out`` for a task of the same board; None if there is none."""
    for path in sorted(place.out.glob(f"*/{RUN_FILE}")):
        with suppress(ResumeError):
            trials = read_run_record(path.parent).trials
            if any((trial.board, trial.board_task) == (place.board, task_id) for trial in trials):
                return path.parent
    return None
