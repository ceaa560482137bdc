"""Deleting runs, and what remains where a command was killed while it deleted or wrote one."""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from rlexp.errors import ResumeError
from rlexp.runs.run_lock import LOCK_FILE, RunLock

_REMAINS: Final = re.compile(r"\..+\.\d+\.removing")
_UNFINISHED: Final = (".*.writing", "*/.*.writing", "*/videos/.*.mp4")
"""Files and checkpoints below a run that get their names when they are complete."""


def remove_run(path: Path) -> None:
    """Delete the directory of a run that the caller has locked; raises OSError where that fails.

    It gets another name first, so that its own is free at once. The file of its lock is deleted last: what a kill
    leaves is known by it.
    """
    _delete(path.rename(path.with_name(f".{path.name}.{os.getpid()}.removing")))


def remove_remains(out: Path) -> None:
    """Delete what an interrupted ``remove_run`` left in ``out``: only directories of this user, and none in use."""
    for path in out.glob(".*.removing"):
        if _are_remains(path):
            with suppress(ResumeError, OSError), RunLock(path):
                _delete(path)


def remove_unfinished(run: Path) -> None:
    """Delete what was being written when a run was killed; the caller has its lock."""
    for path in (path for pattern in _UNFINISHED for path in run.glob(pattern)):
        if _is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _are_remains(path: Path) -> bool:
    with suppress(OSError):
        if _REMAINS.fullmatch(path.name) and _is_directory(path) and path.lstat().st_uid == os.geteuid():
            return (path / LOCK_FILE).is_file() or not any(path.iterdir())
    return False


def _delete(directory: Path) -> None:
    for path in directory.iterdir():
        if _is_directory(path):
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
    shutil.rmtree(directory)


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)
