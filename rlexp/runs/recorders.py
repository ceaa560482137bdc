"""What keeps the rows of a trial: ``result.json`` and ``progress.csv``, a line an iteration, continued after a kill.

TrialRecorder is all recorders of a trial behind one name: its files, and the trackers that its experiment asks for,
of which the runner knows the protocols here.
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
    """Owns a file of lines of which each, but for a header, has the number of an iteration; numbers only grow.

    An existing file is continued: a last line without an end, which a kill interrupted, is cut off. A line whose
    number is not higher than the last takes back those from that number on: the trial began again before them.
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
        """The number of its last line, 0 where it has none."""
        return self._numbers[-1] if self._numbers else 0

    def write(self, number: int | None, line: str) -> None:
        """Append a line; another program can read it as soon as this has returned."""
        if number is not None and self._numbers and number <= self._numbers[-1]:
            self._take_back(number)
        data = line.encode("utf-8")
        self._file.write(data)
        self._file.flush()
        self._note(number, len(data))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
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
        """That of the last row, 0 without one."""
        return self._file.last

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row`` as one line; values that are not there become null. Iterations done again are taken back."""
        self._file.write(row[ITERATION], to_json(row) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _iteration_of(line: str) -> int | None:
    try:
        return int(json.loads(line)[ITERATION])
    except (ValueError, TypeError, KeyError):  # not one of ours: it stays where it is
        return None


class CsvRecorder:
    """Owns ``progress.csv`` of one trial.

    The header is the declared columns, then what else the first row has; a file that is there keeps
    its header. A key that first appears later is in ``result.json`` only: a table whose columns
    shift cannot be read while it grows.
    """

    def __init__(self, trial_directory: Path, agent_columns: Sequence[str] = ()) -> None:
        """Declare the columns of every agent and ``agent_columns``."""
        self._declared = [*COLUMNS, *agent_columns]
        self._header: list[str] = []
        self._file = LineFile(trial_directory / "progress.csv", self._iteration_of)

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row``; values that are not there become empty cells, lists become JSON.

        Iterations done again are taken back.
        """
        cells = flatten(row)
        if not self._header:
            self._header = [*self._declared, *(name for name in cells if name not in self._declared)]
            self._file.write(None, _line(self._header))
        self._file.write(row[ITERATION], _line(_cell(cells.get(name)) for name in self._header))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _iteration_of(self, line: str) -> int | None:
        cells = next(csv.reader([line]), [])
        if not self._header:
            self._header = cells
            return None
        try:
            return int(cells[self._header.index(ITERATION)])
        except (ValueError, IndexError):  # not one of ours: it stays where it is
            return None


def _line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(list(cells))
    return line.getvalue()


def _cell(value: Any) -> Any:
    value = plain(value)
    return to_json(value) if isinstance(value, list) else value


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

        See ``TensorBoardRecorder`` and ``CsvRecorder`` for the arguments; ``trackers`` get every row too.
        """
        from rlexp.runs.tensorboard import TensorBoardRecorder  # trackers' processes do without TensorBoard

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
