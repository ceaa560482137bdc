"""The script of our own raylet: runs as its agents, which do nothing, and starts processes of trials and workers.

Run as a script without site-packages, which takes a fiftieth of the time that an agent takes. ``agent`` ends with the
raylet. ``start SOCKET SETUP [-s] [-S] SCRIPT ARGUMENT…`` has the process forked, or starts it itself if that fails;
SETUP is Ray's script for processes with a runtime environment, which are not forked.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time

INTERVAL_S = 1.0
RAYLET_PID = "RAY_RAYLET_PID"
"""The variable in which a raylet gives its agents its pid, as it may have ended before they can ask."""


def wait_for_end(parent: int) -> None:
    """Return when the process ``parent``, which started this one, has ended."""
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)


AGENT, START = "agent", "start"
"""The first argument, which selects the task of the script."""
TIMEOUT_S = 20.0
"""Seconds that the fork server may take to import what it needs, and to fork."""
PID_FILE = ".pid"
"""Suffix of the server's path for the file with its pid."""
LOOK_S = 1.0
"""Seconds between two checks of whether the server is stopped."""
RUNTIME_ENVIRONMENT = "--serialized-runtime-env-context="
LANGUAGE = "--language="
"""Language argument of SETUP; the script itself does not know it."""
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def forked(path: str, words: list[str]) -> bool:
    """Let the server at ``path`` fork a process; return whether it did."""
    request = {
        "words": words,
        "environment": dict(os.environ),
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "limits": [(number, *resource.getrlimit(number)) for number in LIMITS],
        "out_of_memory_score": out_of_memory_score(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
            folder = os.open(".", os.O_PATH)  # its name may be gone
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, folder])
            return is_answered(connection, path)
        except (OSError, ValueError):  # It has ended, takes too long, or the variables do not fit into a packet.
            return False


def is_answered(connection: socket.socket, path: str) -> bool:
    """Return whether the server has forked the process; raises OSError or ValueError if its pid is not known."""
    with open(path + PID_FILE, encoding="ascii") as file:
        pid = int(file.read())
    connection.settimeout(LOOK_S)
    for _ in range(round(TIMEOUT_S / LOOK_S)):
        with contextlib.suppress(TimeoutError):
            return bool(connection.recv(32))
        if is_stopped(pid):
            return False
    return False


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by SIGSTOP or a debugger, and does not answer until it continues."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] in ("T", "t")


def out_of_memory_score() -> str:
    """Return the system's preference for killing this process without memory, as the raylet has set it."""
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        return file.read().strip()


def start(path: str, setup: str, words: list[str]) -> None:
    """Have the process for Ray's ``words`` started, or become it."""
    if any(word.startswith(RUNTIME_ENVIRONMENT) for word in words):
        os.execv(sys.executable, [sys.executable, setup, *words])
    words = [word for word in words if not word.startswith(LANGUAGE)]
    if words[0].startswith("-") or not forked(path, words):
        os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    if sys.argv[1] == AGENT:
        wait_for_end(int(os.environ.get(RAYLET_PID, os.getppid())))
    else:
        start(sys.argv[2], sys.argv[3], sys.argv[4:])
