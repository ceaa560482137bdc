"""The process from which Ray's processes are forked: it imports what they need, and forks one for each request.

Run as a script: ``fork_server_process.py SOCKET FOLDER MODULE…``. SOCKET is the descriptor of a listening socket of
packets; FOLDER is where ``rlexp`` is imported from. Each connection of the raylet's script sends one packet: the words,
variables, blocked signals and limits of a process in JSON, and its stdin, stdout, stderr and folder as descriptors. The
answer is the pid of the process. When stdin ends, the command has ended, and this process ends as well; if the command
is killed while it still imports, the guard ends it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

REQUEST_BYTES: Final = 2**20
"""More bytes than a packet can have."""
REAP_S: Final = 1.0
"""Seconds between checks for exit codes of ended processes, which the system keeps until then."""
_STANDARD: Final = (0, 1, 2)
_FILES: Final = len(_STANDARD) + 1
"""Number of descriptors in a request."""
_OUT_OF_MEMORY_SCORE: Final = Path("/proc/self/oom_score_adj")


@dataclass(frozen=True)
class ForkRequest:
    """The request of a process."""

    words: list[str]
    """A Python script and its arguments."""
    environment: dict[str, str]
    blocked: list[int]
    """Numbers of its blocked signals."""
    limits: list[tuple[int, int, int]]
    """Resources of setrlimit(2), each with its soft and its hard limit."""
    out_of_memory_score: str
    """The system's preference for killing it without memory: the raylet offers it before itself and the command."""
    files: tuple[int, ...]
    """Descriptors of its stdin, stdout, stderr and current folder."""


def import_all(modules: list[str], folder: str) -> dict[str, str]:
    """Import what processes need, ``rlexp`` from ``folder``; return the variables that the imports have set.

    All of it is kept out of garbage collections, which would copy its pages.
    """
    before = dict(os.environ)
    gc.disable()
    sys.path.insert(0, folder)
    for module in modules:
        with suppress(Exception):  # the process that needs it imports it again, and reports the error
            import_module(module)
    sys.path.remove(folder)  # first, as imported packages may have put their own folders before it
    gc.freeze()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def draws_differ() -> bool:
    """Return whether Ray draws other random numbers in each forked process; it names objects by these.

    After a first draw, as for each class that is an actor at import, all processes would draw the same.
    """
    raylet: Any = sys.modules.get("ray._raylet")
    return raylet is None or _drawn_in_fork(raylet) != _drawn_in_fork(raylet)


def _drawn_in_fork(raylet: Any) -> bytes:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, raylet.UniqueID.from_random().binary())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        return file.read()


def next_child(listener: socket.socket) -> ForkRequest | None:
    """Fork a process for each request: return the request in the forked process, None when stdin ends."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [], REAP_S)
        _reap()
        if sys.stdin in ready:
            return None
        request = _request_in_fork(listener) if listener in ready else None
        if request is not None:
            return request


def _request_in_fork(listener: socket.socket) -> ForkRequest | None:
    """Fork a process for the waiting request: return the request in the forked process, None in this one."""
    connection, _ = listener.accept()
    with connection:
        request = _received(connection)
        if request is None:
            return None
        pid = os.fork()
        if pid == 0:
            listener.close()
            return request
        with suppress(OSError):
            connection.send(str(pid).encode())
    for file in request.files:
        os.close(file)
    return None


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _received(connection: socket.socket) -> ForkRequest | None:
    """Return a request; None if there is none, nobody waits for it any more, or forking is not safe."""
    connection.settimeout(REAP_S)
    with suppress(OSError):
        data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, _FILES)
        if data and len(files) == _FILES and _is_waited_for(connection) and _has_one_thread():
            return ForkRequest(**json.loads(data), files=tuple(files))
        for file in files:
            os.close(file)
    return None


def _is_waited_for(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True


def _has_one_thread() -> bool:
    """Return whether no import has started a thread, whose locks would be held for ever in a fork."""
    return len(os.listdir("/proc/self/task")) == 1


def become(request: ForkRequest, variables: dict[str, str]) -> None:
    """Run the script of a request as if this process had been started for it, with its imports done.

    ``variables``: those that the imports have set in the environment.
    """
    os.setpgid(0, 0)  # the raylet kills the process group of an ended process
    *standard_files, folder = request.files
    for standard, file in zip(_STANDARD, standard_files, strict=True):
        os.dup2(file, standard)
    os.fchdir(folder)
    for file in request.files:
        os.close(file)
    os.environ.clear()
    os.environ.update({**request.environment, **variables})
    _set_limits(request)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    _seed_numpy()
    gc.enable()
    script = request.words[0]
    sys.argv[:] = request.words
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def _set_limits(request: ForkRequest) -> None:
    """Set limits and score, as ``ray.init`` raises the number of open files after the fork server was started."""
    for number, *limits in request.limits:
        if resource.getrlimit(number) != tuple(limits):
            with suppress(OSError, ValueError):
                resource.setrlimit(number, (limits[0], limits[1]))
    with suppress(OSError):
        _OUT_OF_MEMORY_SCORE.write_text(request.out_of_memory_score)


def _seed_numpy() -> None:
    """Give NumPy's global generator its own seed, as Python's has after a fork; else all processes draw alike."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def main() -> None:
    """Import, then serve, and run each request in a process that was forked for it."""
    descriptor, folder, *modules = sys.argv[1:]
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this script
    variables = import_all(modules, folder)
    request = next_child(socket.socket(fileno=int(descriptor))) if draws_differ() else None
    if request is not None:
        become(request, variables)


if __name__ == "__main__":
    main()
