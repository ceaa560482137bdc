"""Recorders of a trial's rows: ``result.json`` and ``progress.csv``, one line per iteration, continued after a kill.

TrialRecorder combines all recorders of a trial: its files, and the trackers of its experiment, whose protocols are
defined here.
"""

from __future__ import annotations

import csv
import io
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.keys.trial import Trial
from rlexp.files import plain, read_lines, to_json
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.rows import COLUMNS, ITERATION, flatten


class LineFile:
    """Owns a file in which each line, except a header, has an iteration number; numbers only grow.

    An existing file is continued; an unfinished last line, which a kill left, is removed. A line whose number is not
    higher than the last removes the lines from that number on, as the trial began again before them.
    """

    def __init__(self, path: Path, number_of: Callable[[str], int | None]) -> None:
        """Read what ``path`` has; ``number_of`` returns a line's number, None for the header."""
        self._numbers: list[int] = []
        self._starts: list[int] = []
        self._end = 0
        if path.exists():
            for line in read_lines(path):
                if line.endswith(b"\n"):
                    self._note(number_of(line.decode("utf-8")), len(line))
        self._file = path.open("a+b")
        self._file.truncate(self._end)

    @property
    def last(self) -> int:
        """The number of its last line; 0 if it has none."""
        return self._numbers[-1] if self._numbers else 0

    def write(self, number: int | None, line: str) -> None:
        """Append a line; other programs can read it when this returns."""
        if number is not None and self._numbers and number <= self._numbers[-1]:
            self._take_back(number)
        data = line.encode("utf-8")
        self._file.write(data)
        self._file.flush()
        self._note(number, len(data))

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _note(self, number: int | None, size: int) -> None:
        if number is not None:
            self._numbers.append(number)
            self._starts.append(self._end)
        self._end += size

    def _take_back(self, number: int) -> None:
        index = bisect_left(self._numbers, number)
        self._end = self._starts[index]
        self._file.truncate(self._end)
        del self._numbers[index:], self._starts[index:]


class JsonRecorder:
    """Owns ``result.json`` of one trial; continues an existing file."""

    def __init__(self, trial_directory: Path) -> None:
        self._file = LineFile(trial_directory / "result.json", _iteration_of)

    @property
    def last_iteration(self) -> int:
        """The iteration of the last row; 0 without one."""
        return self._file.last

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row`` as one line, missing values as null; remove rows of iterations that are done again."""
        self._file.write(row[ITERATION], to_json(row) + "\n")

    def close(self) -> None:
        self._file.close()


def _iteration_of(line: str) -> int | None:
    try:
        return int(json.loads(line)[ITERATION])
    except (ValueError, TypeError, KeyError):  # the line is not ours and stays
        return None


class CsvRecorder:
    """Owns ``progress.csv`` of one trial.

    The header has the declared columns, then the other keys of the first row; an existing file keeps its header. A key
    that first appears later is in ``result.json`` only: a table whose columns shift cannot be read while it grows.
    """

    def __init__(self, trial_directory: Path, agent_columns: Sequence[str] = ()) -> None:
        """Declare the columns of every agent and ``agent_columns``."""
        self._declared = [*COLUMNS, *agent_columns]
        self._header: list[str] = []
        self._file = LineFile(trial_directory / "progress.csv", self._iteration_of)

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row``; missing values become empty cells, lists become JSON.

        Rows of iterations that are done again are removed.
        """
        cells = flatten(row)
        if not self._header:
            self._header = [*self._declared, *(name for name in cells if name not in self._declared)]
            self._file.write(None, _line(self._header))
        self._file.write(row[ITERATION], _line(_cell(cells.get(name)) for name in self._header))

    def close(self) -> None:
        self._file.close()

    def _iteration_of(self, line: str) -> int | None:
        cells = next(csv.reader([line]), [])
        if not self._header:
            self._header = cells
            return None
        try:
            return int(cells[self._header.index(ITERATION)])
        except (ValueError, IndexError):  # the line is not ours and stays
            return None


def _line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(list(cells))
    return line.getvalue()


def _cell(value: Any) -> Any:
    value = plain(value)
    return to_json(value) if isinstance(value, list) else value


class Recorder(Protocol):
    """Stores rows so that other programs can read each one when ``record`` returns."""

    def record(self, row: Mapping[str, Any]) -> None:
        """Write one result row: flat except the dict ``info``; None and NaN are missing values."""

    def close(self) -> None:
        """Finish the file; idempotent."""


class TrialTracker(Recorder, Protocol):
    """Passes the rows of one trial to a tracker. Unlike files, it gets them a moment later, and it never raises."""

    def end(self, status: Status, score: float | None) -> None:
        """Record the trial's end, and the score by which a sweep ranks it, if one does."""


class RunTrackers(Protocol):
    """The trackers of a run: a program for each beside the command, which does not wait for it."""

    def of(self, trial: Trial, folder: Path, record: RunRecord) -> Sequence[TrialTracker]:
        """Return the trackers of a trial with the directory ``folder``; ``record`` is the run's."""

    def drain_notes(self) -> list[str]:
        """Return the notes since the last call."""

    def finish(self) -> list[str]:
        """Wait a short time until everything is recorded; return the notes, also about what is not."""


class NoTrackers:
    """The RunTrackers of a run without trackers."""

    def of(self, trial: Trial, folder: Path, record: RunRecord) -> Sequence[TrialTracker]:
        return ()

    def drain_notes(self) -> list[str]:
        return []

    def finish(self) -> list[str]:
        return []


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
        """Open the files, or append to the files of a trial that is resumed.

        See ``TensorBoardRecorder`` and ``CsvRecorder`` for the arguments; ``trackers`` get every row too.
        """
        from rlexp.runs.tensorboard import TensorBoardRecorder  # trackers' processes need no TensorBoard

        self._tensorboard = TensorBoardRecorder(trial_directory, hyperparameters, metrics)
        self._json = JsonRecorder(trial_directory)
        # result.json last: a row that a kill kept from it is recorded again, and the others remove theirs.
        files: list[Recorder] = [CsvRecorder(trial_directory, agent_columns), self._tensorboard, self._json]
        self._trackers = trackers
        self._recorders = [*files, *trackers]

    def record_missing(self, row: Mapping[str, Any]) -> None:
        """Pass on the row of a checkpoint if a kill kept it from being recorded."""
        if row[ITERATION] > self._json.last_iteration:
            self.record(row)

    def record(self, row: Mapping[str, Any]) -> None:
        for recorder in self._recorders:
            recorder.record(row)

    def end(self, status: Status, score: float | None) -> None:
        """Record the trial's end, and the score by which a sweep ranks it, if one does."""
        self._tensorboard.end(status is not Status.ERROR, score)
        for tracker in self._trackers:
            tracker.end(status, score)

    def close(self) -> None:
        """Close every recorder, even if one of them fails; idempotent."""
        with ExitStack() as closing:
            for recorder in self._recorders:
                closing.callback(recorder.close)
