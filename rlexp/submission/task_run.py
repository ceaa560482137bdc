"""TaskRun: the run directory of a task that is trained elsewhere, like that of a run of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rlexp.display import Display
from rlexp.errors import ResumeError, UsageError
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.last_row import last_row
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.recording import RunTrackers
from rlexp.runs.run_directory import RunDirectory, trial_parameters
from rlexp.runs.run_record import RecordedError, Status, read_run_record
from rlexp.submission.experiment_task import SubmittedTask
from rlexp.submission.result_checkpoint import keep_result
from rlexp.transport.board import TaskStatus, TaskSummary

STATUSES: Final = {
    TaskStatus.ENDED: Status.TERMINATED,
    TaskStatus.FAILED: Status.ERROR,
    TaskStatus.CANCELLED: Status.STOPPED,
}
"""How a run ends whose task is over."""


@dataclass(frozen=True)
class RunPlace:
    """Where a run belongs, and how it was asked for."""

    out: Path
    name: str | None
    overwrite: bool
    command: Sequence[str]
    board: str | None = None
    """The server of the board that its task is on."""


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
        """The newest one that is recorded."""
        self._evaluation: Mapping[str, Any] | None = None
        self._held: dict[str, Any] | None = None
        directory.trial_status(self._trial, Status.RUNNING)

    @classmethod
    def create(
        cls, submitted: SubmittedTask, place: RunPlace, display: Display, trackers: RunTrackers | None = None
    ) -> TaskRun:
        """Make the directory; raises as ``RunDirectory.create`` does. ``trackers`` are of the user of this command."""
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
        """Go on with a run that was left; raises ResumeError where it is in use or damaged."""
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
        """Whether it is new and has no result."""
        return self.directory.is_new and self.last_row is None and self._held is None

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the trainer is to write one at the end."""
        return self._trial.experiment.checkpoint_at_end

    def begin(self) -> None:
        """Show where it is."""
        self._display.start(self.directory.path, [self._trial])
        self._display.on_trial_start(self._trial)

    def record(self, row: dict[str, Any]) -> None:
        """Record a result row of the trainer, with the evaluation of this process where it has none of its own."""
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
        """Record a row with the next one, or at the end: an evaluation that has not ended may belong to it."""
        self._record_held()
        self._held = row

    def add_evaluation(self, figures: Mapping[str, Any]) -> None:
        """Keep an evaluation for the next row that is recorded."""
        self._evaluation = figures

    def add_result(self, content: bytes, key: bytes) -> None:
        """Keep the checkpoint that the trainer wrote at the end; raises CheckpointError where it is none.

        ``key`` is the task's.
        """
        path = keep_result(content, self._folder, self._submitted, key)
        row = self.last_row or {}
        self.directory.trial_checkpoint(self._trial, path, row)

    def finish(self, summary: TaskSummary, problem: str | None = None) -> None:
        """Record and show how the task ended; ``problem``: why its run has failed nevertheless."""
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
        """End while the task goes on; a run without any result is removed."""
        self._record_held()
        if self.is_empty:
            self.close()
            self.directory.discard()
        else:
            self.directory.finish(Status.STOPPED)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._recorder.close()
        self.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _note_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._display.on_note(None, text)

    def _record_held(self) -> None:
        row, self._held = self._held, None
        if row is not None:
            self.record(row)


def run_of_task(place: RunPlace, task_id: str) -> Path | None:
    """Return the run in ``place.out`` that was made for a task of the same board; None where there is none."""
    for path in sorted(place.out.glob(f"*/{RUN_FILE}")):
        with suppress(ResumeError):
            trials = read_run_record(path.parent).trials
            if any((trial.board, trial.board_task) == (place.board, task_id) for trial in trials):
                return path.parent
    return None
