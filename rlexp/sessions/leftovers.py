"""Leftovers of killed commands: folders of their Rays, and processes that use them."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlexp.runs.folder_size import size_below
from rlexp.runs.run_record import RUN_FILE
from rlexp.runs.temporary_folder import PREFIX, is_abandoned
from rlexp.sessions.processes import kill_processes_of, processes_of

END_TIMEOUT_S = 3.0
"""How long processes get to vanish after they were killed."""


@dataclass(frozen=True)
class Leftover:
    """The folder of a command that has ended."""

    folder: Path
    bytes: int
    processes: tuple[psutil.Process, ...]
    """Those that were started for it and are alive."""

    def remove(self) -> None:
        """Kill its processes and delete the folder, unless that is another one by now."""
        if not _is_leftover(self.folder):
            return
        kill_processes_of(self.folder, END_TIMEOUT_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_leftovers() -> list[Leftover]:
    """Return this user's, on this machine: folders with our marker whose lock is free, and without a run in them."""
    folders = list(filter(_is_leftover, Path(tempfile.gettempdir()).glob(f"{PREFIX}*")))
    return [Leftover(folder, size_below(folder)[0], tuple(processes_of(folder))) for folder in sorted(folders)]


def _is_leftover(path: Path) -> bool:
    return is_abandoned(path) and not any(RUN_FILE in names for _, _, names in os.walk(path))
