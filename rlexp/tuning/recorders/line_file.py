"""Opening a file of lines to go on with it after the process that wrote it was killed."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


def open_for_append(path: Path) -> TextIO:
    """Open ``path`` to append lines, first cutting off a last line that has no end: a kill interrupted it."""
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(_end_of_last_line(path))
    return path.open("a", encoding="utf-8", newline="")


def _end_of_last_line(path: Path) -> int:
    end = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                end += len(line)
    return end
