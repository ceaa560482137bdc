"""``progress.csv``: one flat line per iteration under a header that never changes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.json_file import plain, to_json
from rlexp.tuning.recorders.append_file import open_for_append
from rlexp.tuning.recorders.columns import COLUMNS, flatten


class CsvRecorder:
    """Owns ``progress.csv`` of one trial.

    The header is the declared columns, then what else the first row has; a file that is there keeps
    its header. A key that first appears later is in ``result.json`` only: a table whose columns
    shift cannot be read while it grows.
    """

    def __init__(self, trial_directory: Path) -> None:
        path = trial_directory / "progress.csv"
        self._file = open_for_append(path)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._header = _header_of(path)

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row``; values that are not there become empty cells, lists become JSON."""
        cells = flatten(row)
        if not self._header:
            self._header = [*COLUMNS, *(name for name in cells if name not in COLUMNS)]
            self._writer.writerow(self._header)
        self._writer.writerow([_cell(cells.get(name)) for name in self._header])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _header_of(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _cell(value: Any) -> Any:
    value = plain(value)
    return to_json(value) if isinstance(value, list) else value
