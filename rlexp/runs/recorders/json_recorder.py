"""``result.json``: one JSON object per line and iteration, nested as the row was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.json_file import to_json
from rlexp.runs.recorders.columns import ITERATION
from rlexp.runs.recorders.line_file import LineFile


class JsonRecorder:
    """Owns ``result.json`` of one trial; goes on with the file that is there."""

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
