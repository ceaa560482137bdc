"""A run after its end, for the program that started it: its directory, its trials, and why some of them failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlexp.errors import TrialError
from rlexp.runs.record import Status, TrialRecord, read_run_record
from rlexp.runs.rows import last_row

if TYPE_CHECKING:
    from rlexp.agents.trained_policy import TrainedPolicy
    from rlexp.compare.table import Results


@dataclass(frozen=True)
class FinishedTrial:
    """One trial of a run, as it ended."""

    name: str
    directory: Path
    status: Status
    seed: int | None
    varied: dict[str, Any]
    """The keys that a grid or sweep varied, with this trial's values."""
    best_checkpoint: Path | None
    """The checkpoint with the highest mean reward; None if the trial wrote none."""
    error: str | None
    """The reason of its failure, in one line."""
    traceback: Path | None
    """The file with the traceback of that failure."""

    @property
    def last_row(self) -> dict[str, Any] | None:
        """Its last result, with nested dicts such as ``info``; None if it has none."""
        return last_row(self.directory)

    def load_policy(self, *, explore: bool = False, seed: int | None = None) -> TrainedPolicy:
        """Return the policy of its best checkpoint, see :func:`rlexp.load_policy`."""
        from rlexp.api.functions import load_policy

        return load_policy(self.directory, explore=explore, seed=seed)


@dataclass(frozen=True, repr=False)
class Run:
    """A run or sweep that has ended, see :func:`rlexp.run`."""

    directory: Path
    status: Status
    """TERMINATED if every trial reached its stop or was ended by its sweep, ERROR if one failed."""
    trials: tuple[FinishedTrial, ...]

    def __repr__(self) -> str:
        trials = "1 trial" if len(self.trials) == 1 else f"{len(self.trials)} trials"
        return f"<Run {self.directory}: {self.status}, {trials}>"

    def _repr_html_(self) -> str:
        """Return its directory, and a table and curves of its trials if they are still there, for a notebook."""
        head = f"<p><b>{escape(str(self.directory))}</b>: {self.status}</p>"
        failed = "".join(f"<p>{escape(trial.name)}: {escape(trial.error or '')}</p>" for trial in self.failed)
        found = self.results()._repr_html_() if self.directory.is_dir() else ""
        return f"{head}{found}{failed}"

    @staticmethod
    def at(directory: Path) -> Run:
        """Read ``run.json``; raises ResumeError if there is none."""
        record = read_run_record(directory)
        return Run(directory, record.status, tuple(_trial(directory, trial) for trial in record.trials))

    @property
    def failed(self) -> tuple[FinishedTrial, ...]:
        """The trials that failed."""
        return tuple(trial for trial in self.trials if trial.status is Status.ERROR)

    def results(self) -> Results:
        """Return all rows of all trials, see :func:`rlexp.results`."""
        from rlexp.api.functions import results

        return results(self.directory)

    def load_policy(self, *, explore: bool = False, seed: int | None = None) -> TrainedPolicy:
        """Return the policy of the best checkpoint of all trials, see :func:`rlexp.load_policy`."""
        from rlexp.api.functions import load_policy

        return load_policy(self.directory, explore=explore, seed=seed)


class FailedRunError(TrialError):
    """Trials of a run failed; the others trained on to their end."""

    def __init__(self, message: str, hint: str | None, run: Run) -> None:
        super().__init__(message, hint)
        self.run = run
        """The run with its results."""


def failed_run(run: Run) -> FailedRunError:
    """Return the error of a run with failed trials: their names, the reasons, and the file of the first traceback.

    A sweep also fails without a failed trial.
    """
    if not run.failed:
        message = "the sweep has failed: no trial has a value of its metric, or it had too many invalid points"
        return FailedRunError(message, f"see sweep.json in {run.directory}", run)
    names = _listed([f"{trial.name}: {trial.error or 'no reason is known'}" for trial in run.failed])
    tracebacks = [trial.traceback for trial in run.failed if trial.traceback is not None]
    hint = f"the traceback is in {tracebacks[0]}" if tracebacks else f"see {run.directory}"
    return FailedRunError(f"{len(run.failed)} of {len(run.trials)} trials failed: {names}", hint, run)


def _listed(names: Sequence[str], most: int = 3) -> str:
    others = f"; and {len(names) - most} others" if len(names) > most else ""
    return "; ".join(names[:most]) + others


def _trial(run: Path, record: TrialRecord) -> FinishedTrial:
    error = record.error
    return FinishedTrial(
        name=record.name,
        directory=run / record.directory,
        status=record.status,
        seed=record.seed,
        varied=record.varied,
        best_checkpoint=None if record.best_checkpoint is None else run / record.best_checkpoint,
        error=None if error is None else error.summary,
        traceback=None if error is None or error.traceback is None else run / error.traceback,
    )
