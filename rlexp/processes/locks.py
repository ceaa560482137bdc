"""The lock of a run directory: one process writes there, and a second one gets an error that names it.

Both the directory and its file ``rlexp.lock`` are locked. The directory's lock stays if somebody deletes the file while
the run continues, and it moves with the directory. Network file systems lock files only.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from rlexp.errors import ResumeError
from rlexp.files import read_json, refuse_other_than_file

if TYPE_CHECKING:
    from filelock import BaseFileLock

RUN_FILE: Final = "run.json"
"""The record of a run; a directory with it is a run."""
LOCK_FILE: Final = "rlexp.lock"
_TRIES_FOR_S: Final = 0.2
"""Seconds of tries, as a command that only asks whether the run is in use, such as ``rlexp ls``, briefly has a lock."""
_TRY_AGAIN_S: Final = 0.02
_DELETED: Final = " (deleted)"
"""Linux's suffix for the path of an open file that was deleted."""


class RunLock:
    """Owns both locks from construction to ``release``; the system releases them when the process dies."""

    def __init__(self, run_directory: Path) -> None:
        """Take them at once; raises ResumeError naming the holder if another process has one."""
        self.folder = OpenFolder(run_directory)
        """The locked directory."""
        self._file: BaseFileLock | None = None
        try:
            refuse_other_than_file(run_directory / LOCK_FILE)  # a write would follow a link
            self._file = _locked_file(run_directory)
            _lock_directory(self.folder.descriptor, run_directory)
            since = datetime.now().isoformat(timespec="minutes")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            (run_directory / LOCK_FILE).write_text(json.dumps(holder) + "\n", encoding="utf-8")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks; idempotent."""
        if self._file is not None:
            self._file.release()
        self.folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def is_in_use(run_directory: Path) -> bool:
    """Return whether a process of this machine writes there; creates nothing and needs no right to write."""
    return any(_is_locked(path) for path in (run_directory, run_directory / LOCK_FILE))


def in_use(run_directory: Path) -> ResumeError:
    """Return the error for a run that another process has, which names it."""
    holder = _holder(run_directory / LOCK_FILE)
    return ResumeError(
        f"{run_directory} is in use by {holder}", "wait for it or stop it, or give this run another --name"
    )


def _is_locked(path: Path) -> bool:
    """Return whether a shared lock is refused; simultaneous readers do not see each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _locked_file(run_directory: Path) -> BaseFileLock:
    from filelock import FileLock, Timeout  # commands that only list runs take no lock

    # With thread_local, only the thread that took the lock could release it, and others would silently fail.
    lock = FileLock(run_directory / LOCK_FILE, timeout=_TRIES_FOR_S, poll_interval=_TRY_AGAIN_S, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise in_use(run_directory) from None
    return lock


def _lock_directory(descriptor: int, run_directory: Path) -> None:
    """Lock the directory itself, if its file system can."""
    deadline = time.monotonic() + _TRIES_FOR_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise in_use(run_directory) from None
            time.sleep(_TRY_AGAIN_S)
        except OSError:  # on a network file system, the file's lock must be enough
            return
        else:
            return


def _holder(path: Path) -> str:
    try:
        holder = read_json(path)
        since = datetime.fromisoformat(holder["since"])
        day = "" if since.date() == datetime.now().date() else f"{since:%Y-%m-%d} "
        return f"pid {holder['pid']} (host {holder['host']}) since {day}{since:%H:%M}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


class OpenFolder:
    """Owns a descriptor of a directory from construction to ``close``, so that no other directory gets its inode."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if there is no directory at ``path``."""
        self._path = path.absolute()
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def descriptor(self) -> int:
        """The descriptor for system calls; only until ``close``."""
        assert self._descriptor is not None
        return self._descriptor

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to it; not after ``close``."""
        try:
            return self._descriptor is not None and os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    @property
    def new_place(self) -> Path | None:
        """Its present place; None if it was deleted, or the system does not say."""
        try:
            place = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            return None
        return None if place.endswith(_DELETED) else Path(place)

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
