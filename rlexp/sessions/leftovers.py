"""Leftovers of killed commands: folders of their Rays, and processes that use them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlexp.runs.run_lock import LOCK_FILE, is_in_use
from rlexp.sessions.processes import kill_processes_of, processes_of
from rlexp.sessions.session_folder import FOLDER_PREFIX

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
        """Kill its processes and delete the folder."""
        kill_processes_of(self.folder, END_TIMEOUT_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_leftovers() -> list[Leftover]:
    """Return this user's, on this machine: folders whose lock is free."""
    folders = [
        path
        for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*")
        if (path / LOCK_FILE).is_file() and _is_own_folder(path) and not is_in_use(path)
    ]
    return [Leftover(folder, _size(folder), tuple(processes_of(folder))) for folder in sorted(folders)]


def _is_own_folder(path: Path) -> bool:
    """Return whether this user made a folder: other users may put links into the same place."""
    try:
        about = path.lstat()
    except FileNotFoundError:  # its command has just ended
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total
