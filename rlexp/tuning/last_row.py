"""How far a trial came, by what it left."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any


def last_row(trial_directory: Path) -> dict[str, Any] | None:
    """Return the last row of ``result.json``, None where there is none; a line that a kill cut is none."""
    last: deque[bytes] = deque(maxlen=1)
    path = trial_directory / "result.json"
    if not path.is_file():  # a pipe would keep its reader waiting
        return None
    try:
        with path.open("rb") as file:
            last.extend(line for line in file if line.endswith(b"\n"))
        row = json.loads(last[0])
    except (OSError, ValueError, IndexError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
