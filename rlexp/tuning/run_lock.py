"""The lock of a run directory: one process writes there, and a second one learns who."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Final

from filelock import BaseFileLock, FileLock, Timeout

from rlexp.errors import ResumeError

LOCK_FILE: Final = "rlexp.lock"


class RunLock:
    """Owns ``rlexp.lock`` from construction to ``release``; the system releases it when the process dies."""

    def __init__(self, run_directory: Path) -> None:
        """Take the lock at once; raises ResumeError naming the holder when another process has it."""
        path = run_directory / LOCK_FILE
        self._lock = _taken(run_directory)
        since = datetime.now().isoformat(timespec="minutes")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        path.write_text(json.dumps(holder) + "\n", encoding="utf-8")

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        self._lock.release()


def is_in_use(run_directory: Path) -> bool:
    """Tell whether a process of this machine writes there; creates nothing and needs no right to write.

    A shared lock is asked for: readers that look at the same moment do not see each other.
    """
    try:
        descriptor = os.open(run_directory / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)
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


def refuse_if_in_use(run_directory: Path) -> None:
    """Raise the ResumeError of :class:`RunLock` when another process has the lock; changes nothing."""
    _taken(run_directory).release()


def _taken(run_directory: Path) -> BaseFileLock:
    path = run_directory / LOCK_FILE
    # thread_local would let only the thread that took the lock give it back, and say nothing to the others.
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise in_use(run_directory) from None
    return lock


def in_use(run_directory: Path) -> ResumeError:
    """Return the error of a run that another process has, which names it."""
    holder = _holder(run_directory / LOCK_FILE)
    return ResumeError(
        f"{run_directory} is in use by {holder}", "wait for it or stop it, or give this run another --name"
    )


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        since = datetime.fromisoformat(holder["since"])
        day = "" if since.date() == datetime.now().date() else f"{since:%Y-%m-%d} "
        return f"pid {holder['pid']} (host {holder['host']}) since {day}{since:%H:%M}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
