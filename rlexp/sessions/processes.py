"""The processes of a Ray of ours, found by what all of them inherit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SESSION = "RLEXP_SESSION"
"""An environment variable: the session's folder. The command sets it for those it starts, and is not one of them."""
_LOOK_AGAIN_S = 0.1


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that were started for the session in ``folder`` and are alive."""
    found = []
    for process in psutil.process_iter():
        try:
            is_one = process.pid != os.getpid() and process.environ().get(SESSION) == str(folder)
            if is_one and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def family_of(folder: Path) -> list[psutil.Process]:
    """Return them and all their children, as one may have been given another environment: a simulator of an env's."""
    found: dict[int, psutil.Process] = {}
    for process in processes_of(folder):
        found[process.pid] = process
        with suppress(psutil.NoSuchProcess):
            found.update((child.pid, child) for child in process.children(recursive=True))
    return list(found.values())


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or only waits for its parent to take its exit code."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill those that are still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def kill_processes_of(folder: Path, timeout_s: float) -> None:
    """Kill them and their children until two looks in a row find none, or for ``timeout_s``.

    Two, as a process that just starts may not be seen.
    """
    deadline = time.monotonic() + timeout_s
    looks_in_vain = 0
    while looks_in_vain < 2 and time.monotonic() < deadline:
        found = family_of(folder)
        kill(found)
        psutil.wait_procs(found, timeout=_LOOK_AGAIN_S)
        looks_in_vain = 0 if found else looks_in_vain + 1
        if not found:
            time.sleep(_LOOK_AGAIN_S)
