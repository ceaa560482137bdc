"""Folders of rlexp among the temporary files: made with a lock and a marker, by which only they are known again."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any, Final

from rlexp.json_file import read_json, replace_json
from rlexp.runs.run_lock import LOCK_FILE, RunLock, is_in_use

PREFIX: Final = "rlexp-"
MARKER: Final = "rlexp-temporary-folder.json"
_MEANING: Final = "temporary folder of rlexp; rlexp doctor --clean removes it where its process has ended"


class TemporaryFolder:
    """Owns a new folder and its lock from construction to ``release``; what is in it is removed by its user."""

    def __init__(self, kind: str = "") -> None:
        """Raises OSError where it cannot be made; then nothing is left."""
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX + kind))
        try:
            self._lock = RunLock(self.path)
            try:
                replace_json(self.path / MARKER, _marker(self.path))
            except BaseException:
                self._lock.release()
                raise
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def release(self) -> None:
        """Give up the lock; a second call does nothing."""
        self._lock.release()

    def remove(self) -> None:
        """Delete it and give up the lock; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def is_abandoned(path: Path) -> bool:
    """Return whether ``path`` is a folder that a :class:`TemporaryFolder` of this user has made and left behind.

    A marker that was copied, linked or moved to another folder does not count, since it names the one that it is of.
    """
    try:
        about = path.lstat()
        is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        return is_own and _has_own_marker(path) and (path / LOCK_FILE).is_file() and not is_in_use(path)
    except (OSError, ValueError):
        return False


def _has_own_marker(path: Path) -> bool:
    about = (path / MARKER).lstat()
    is_own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
    return is_own and bool(read_json(path / MARKER) == _marker(path))


def _marker(path: Path) -> dict[str, Any]:
    return {"what": _MEANING, "folder": path.name, "inode": path.lstat().st_ino}
