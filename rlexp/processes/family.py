"""The processes of our own Ray and their folder: found, ended with the command, and cleaned up after a killed one.

The folder is among the temporary files; its lock and marker identify it. All processes of the session inherit its name
in a variable. If the command is killed, a guard, a small process that outlives it, ends them. Ray's own processes end
with their command too. Some end after a minute or never, as they may not know of each other yet. A trial's process may
write meanwhile, beside the one that resumes it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from rlexp.files import read_json, replace_json, size_below
from rlexp.processes.child import kill_child, own_environment, own_program, start_child
from rlexp.processes.locks import LOCK_FILE, RUN_FILE, RunLock, is_in_use

PREFIX: Final = "rlexp-"
MARKER: Final = "rlexp-temporary-folder.json"
_MEANING: Final = "temporary folder of rlexp; rlexp doctor --clean removes it where its process has ended"


class TemporaryFolder:
    """Owns a new folder and its lock from construction to ``release``; its user removes the content."""

    def __init__(self, kind: str = "") -> None:
        """Raises OSError if it cannot be made, and leaves nothing."""
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
        """Release the lock; idempotent."""
        self._lock.release()

    def remove(self) -> None:
        """Delete it and release the lock; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def _marker(path: Path) -> dict[str, Any]:
    return {"what": _MEANING, "folder": path.name, "inode": path.lstat().st_ino}


SESSION = "RLEXP_SESSION"
"""Environment variable with the session's folder. The command sets it for its children, and does not have it itself."""
_LOOK_AGAIN_S = 0.1


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes that were started for the session in ``folder``."""
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
    """Return them and all their children, as a child may have another environment, such as an env's simulator."""
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
    """Kill the processes that still exist."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def kill_processes_of(folder: Path, timeout_s: float) -> None:
    """Kill them and their children until two checks in a row find none, or for ``timeout_s``.

    Two, as a process that is just starting may not be seen.
    """
    deadline = time.monotonic() + timeout_s
    found_none = False
    while time.monotonic() < deadline:
        found = family_of(folder)
        if found_none and not found:
            return
        found_none = not found
        kill(found)
        psutil.wait_procs(found, timeout=_LOOK_AGAIN_S)
        if found_none:
            time.sleep(_LOOK_AGAIN_S)


DISMISSAL = b"."
END_TIMEOUT_S = 10.0


class Guard:
    """Owns the process from construction to ``dismiss``; it ends by itself when this process dies."""

    def __init__(self, folder: Path) -> None:
        """Watch over the session in ``folder``."""
        # It is none of the processes that it would end, nor of an outer command's.
        environment = {name: value for name, value in os.environ.items() if name != SESSION}
        # In a session of its own, which Ctrl-C in the terminal does not reach. Nobody else has the pipe's other end, so
        # that it is closed when, and only when, this process ends.
        self._process = start_child(
            own_program(__name__, str(folder)),
            environment=own_environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            own_session=True,
        )

    def dismiss(self) -> None:
        """Dismiss it, as the session has ended in order."""
        try:
            self._process.communicate(DISMISSAL, timeout=END_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            kill_child(self._process)


def main() -> None:
    """Wait for the other end of stdin to close; unless that was a dismissal, end the session in the folder argv[1]."""
    folder = Path(sys.argv[1])
    if sys.stdin.buffer.read() != DISMISSAL:
        kill_processes_of(folder, END_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


LEFTOVERS_END_S = 3.0
"""Seconds for processes to vanish after they were killed."""


@dataclass(frozen=True)
class Leftover:
    """The folder of a command that has ended."""

    folder: Path
    bytes: int
    processes: tuple[psutil.Process, ...]
    """The living processes that were started for it."""

    def remove(self) -> None:
        """Kill its processes and delete the folder, unless it is another folder now."""
        if not _is_leftover(self.folder):
            return
        kill_processes_of(self.folder, LEFTOVERS_END_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_leftovers() -> list[Leftover]:
    """Return this user's leftovers on this machine: folders with our marker, a free lock, and no run in them."""
    folders = list(filter(_is_leftover, Path(tempfile.gettempdir()).glob(f"{PREFIX}*")))
    return [Leftover(folder, size_below(folder)[0], tuple(processes_of(folder))) for folder in sorted(folders)]


def _is_leftover(path: Path) -> bool:
    """Return whether ``path`` is a folder that a :class:`TemporaryFolder` of this user has left.

    A marker that was copied, linked or moved to another folder does not count, since it names its own folder. A folder
    into which somebody has put a run does not count either.
    """
    try:
        is_own = _is_own(path, stat.S_ISDIR) and _is_own(path / MARKER, stat.S_ISREG)
        is_marked = is_own and bool(read_json(path / MARKER) == _marker(path)) and (path / LOCK_FILE).is_file()
    except (OSError, ValueError):
        return False
    return is_marked and not is_in_use(path) and not any(RUN_FILE in names for _, _, names in os.walk(path))


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a file of a kind, and not a link, is this user's; raises OSError if there is none."""
    about = path.lstat()
    return is_kind(about.st_mode) and about.st_uid == os.geteuid()


class SessionFolder:
    """Owns the folder, and all processes that were started for it, from construction to ``remove``.

    If this process dies in between, the guard ends them.
    """

    def __init__(self) -> None:
        """Raises OSError if the folder cannot be made or the guard not be started, and leaves nothing."""
        # Ray lets all users read its own folder, so it is inside one that only this user can read.
        self._folder = TemporaryFolder()
        self.path = self._folder.path
        with ExitStack() as undo:
            undo.callback(self._folder.remove)
            self._guard: Guard | None = Guard(self.path)
            undo.pop_all()

    def remove(self) -> None:
        """End its processes and remove it; idempotent."""
        if self._guard is None:
            return
        # Ray's agents outlive the raylet that started them by some seconds, in which they do nothing.
        kill_processes_of(self.path, END_TIMEOUT_S)
        self._folder.remove()
        self._guard.dismiss()
        self._guard = None


if __name__ == "__main__":
    main()
