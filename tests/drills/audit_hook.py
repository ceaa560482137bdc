"""Writes down what a process does with a stranger's files or beyond this machine.

A drill copies this file as ``sitecustomize.py`` into a folder of its own on PYTHONPATH, so that every Python process of
a command has it, before anything else is imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

LOG = os.environ["RLEXP_AUDIT_LOG"]
HOSTILE = tuple(os.environ["RLEXP_AUDIT_HOSTILE"].split(os.pathsep))
"""Folders of which nothing may be executed."""
WRITABLE = tuple(os.environ["RLEXP_AUDIT_WRITABLE"].split(os.pathsep))
HOSTS = frozenset(os.environ["RLEXP_AUDIT_HOSTS"].split(","))
"""Addresses of this machine."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename": 2, "os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.chmod": 1}
"""Events, and how many of their arguments are paths; the last of them is changed."""
RUNS = {
    "exec": lambda args: args[0].co_filename,
    "import": lambda args: args[1],
    **dict.fromkeys(("subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen"), lambda args: args[0]),
}
"""Events of code that is run, and the file that it is in."""


def tell(what: str) -> None:
    """Append a line to the log."""
    descriptor = real_open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{what[:500]!r} in {sys.argv[:4] if hasattr(sys, 'argv') else '?'}\n".encode())
    os.close(descriptor)


real_open = os.open


def is_below(path: Any, folders: tuple[str, ...]) -> bool:
    """Return whether a path leads into one of ``folders``."""
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str | os.PathLike):
        return False
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(folder + os.sep) for folder in folders)


def names_a_file(path: Any) -> bool:
    """Return whether it is the path of a file: not ``<string>``, nor a program that is looked for on PATH."""
    return isinstance(path, str | bytes) and os.sep in os.fsdecode(path) and not os.fsdecode(path).startswith("<")


def is_here(address: Any) -> bool:
    """Return whether an address is of this machine: a path is that of a Unix socket."""
    return not isinstance(address, tuple) or str(address[0]).split("%")[0] in HOSTS


def hook(event: str, args: tuple[Any, ...]) -> None:
    """Look at an event; see Python's table of audit events."""
    if event in RUNS:
        path = RUNS[event](args)
        if names_a_file(path) and is_below(path, HOSTILE):
            tell(f"{event} {path}")
    elif event == "open":
        if isinstance(args[2], int) and args[2] & WRITING and args[0] != LOG:
            written(event, args[0])
    elif event in CHANGES:
        written(event, args[CHANGES[event] - 1])
    elif event in ("socket.connect", "socket.sendto") and not is_here(args[1]):
        tell(f"{event} {args[1]}")


def written(event: str, path: Any) -> None:
    """Tell of a change outside of the folders that may be written; descriptors have been opened before."""
    if not isinstance(path, int) and not is_below(path, WRITABLE):
        tell(f"{event} {path}")


sys.addaudithook(hook)
