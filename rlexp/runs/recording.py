"""The protocols of recorders: what keeps the rows of a trial, and what a run's trackers are to the runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.keys.trial import Trial
from rlexp.runs.run_record import RunRecord, Status


class Recorder(Protocol):
    """Keeps rows where another program can read each one as soon as ``record`` has returned."""

    def record(self, row: Mapping[str, Any]) -> None:
        """Write one result row: flat but for the dict ``info``; a None or NaN is a value that is not there yet."""

    def close(self) -> None:
        """Finish the file; a second call does nothing."""


class TrialTracker(Recorder, Protocol):
    """Hands the rows of one trial to a tracker; unlike files it has them a moment later, and never raises."""

    def end(self, status: Status, score: float | None) -> None:
        """Say how the trial ended, and what a sweep ranks it by, if one does."""


class RunTrackers(Protocol):
    """The trackers of a run: a program beside the command for each, which the command does not wait for."""

    def of(self, trial: Trial, folder: Path, record: RunRecord) -> Sequence[TrialTracker]:
        """Return those of a trial, whose directory is ``folder``; ``record`` is that of the run."""

    def drain_notes(self) -> list[str]:
        """Return what there is to say since the last call."""

    def finish(self) -> list[str]:
        """Wait until everything is recorded, but not for long; return the notes, also about what is not."""


class NoTrackers:
    """The RunTrackers of a run that only its own files record."""

    def of(self, trial: Trial, folder: Path, record: RunRecord) -> Sequence[TrialTracker]:
        return ()

    def drain_notes(self) -> list[str]:
        return []

    def finish(self) -> list[str]:
        return []
