"""``result.json``: one JSON object per line and iteration, nested as the row was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.json_file import to_json
from rlexp.tuning.recorders.append_file import open_for_append


class JsonRecorder:
    """Owns ``result.json`` of one trial; goes on with the file that is there."""

    def __init__(self, trial_directory: Path) -> None:
        self._file = open_for_append(trial_directory / "result.json")

    def record(self, row: Mapping[str, Any]) -> None:
        """Append ``row`` as one line; values that are not there become null."""
        self._file.write(to_json(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
