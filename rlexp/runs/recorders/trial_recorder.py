"""All recorders of a trial behind one name: its files, and the trackers that its experiment asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlexp.runs.recorders.line_files import CsvRecorder, JsonRecorder
from rlexp.runs.recorders.tensorboard_recorder import TensorBoardRecorder
from rlexp.runs.recording import Recorder, TrialTracker
from rlexp.runs.row_columns import ITERATION
from rlexp.runs.run_record import Status


class TrialRecorder:
    """Owns ``result.json``, ``progress.csv`` and the event file of one trial; the runner hands it every row."""

    def __init__(
        self,
        trial_directory: Path,
        hyperparameters: Mapping[str, Any],
        metrics: Sequence[str] = (),
        agent_columns: Sequence[str] = (),
        trackers: Sequence[TrialTracker] = (),
    ) -> None:
        """Open the files, or append to those of a trial that is resumed.

        See :class:`TensorBoardRecorder` and :class:`CsvRecorder` for the arguments; ``trackers`` get every row too.
        """
        self._tensorboard = TensorBoardRecorder(trial_directory, hyperparameters, metrics)
        self._json = JsonRecorder(trial_directory)
        # result.json last: a row that a kill kept from it is recorded again, and the others take back what they have.
        files: list[Recorder] = [CsvRecorder(trial_directory, agent_columns), self._tensorboard, self._json]
        self._trackers = trackers
        self._recorders = [*files, *trackers]

    def record_missing(self, row: Mapping[str, Any]) -> None:
        """Hand on the row of a checkpoint that a kill kept from being recorded; not one that has been."""
        if row[ITERATION] > self._json.last_iteration:
            self.record(row)

    def record(self, row: Mapping[str, Any]) -> None:
        """Hand ``row`` to every recorder."""
        for recorder in self._recorders:
            recorder.record(row)

    def end(self, status: Status, score: float | None) -> None:
        """Say how the trial ended, and what a sweep ranks it by, if one does."""
        self._tensorboard.end(status is not Status.ERROR, score)
        for tracker in self._trackers:
            tracker.end(status, score)

    def close(self) -> None:
        """Close every recorder, also when one of them fails; a second call does nothing."""
        with ExitStack() as closing:
            for recorder in self._recorders:
                closing.callback(recorder.close)
