"""``progress.csv``: one flat line per iteration under a header that never changes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlexp.json_file import plain, to_json
from rlexp.runs.recorders.columns import COLUMNS, ITERATION, flatten
from rlexp.runs.recorders.line_file import LineFile


class CsvRecorder:
    """Owns ``progress.csv`` of one trial.

    The header is the declared columns, then what else the first row has; a file that is there keeps
    its header. A key that first appears later is in ``result.json`` only: a table whose columns
    shift cannot be read while it grows.
    """

    def __init__(self, trial_directory: Path) -> None:
        self._header: list[str] = []
        self._file = LineFile(trial_directory / "progress.csv", self._iteration_of)

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row``; values that are not there become empty cells, lists become JSON.

        Iterations done again are taken back.
        """
        cells = flatten(row)
        if not self._header:
            self._header = [*COLUMNS, *(name for name in cells if name not in COLUMNS)]
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
