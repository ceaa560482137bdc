"""Several actors of one ``rlexp join --processes N``: each is a process of its own with one seat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rlexp.commands.drain_request import DrainRequest

PARENT_VARIABLE: Final = "RLEXP_JOIN_PARENT"
"""Has the process whose end is theirs too."""
END_TIMEOUT_S: Final = 30.0
"""How long actors may take to leave once they were asked to; then they are killed."""
_POLL_S: Final = 0.2


def join_in_processes(words: Sequence[str], number: int, environment: Mapping[str, str]) -> int:
    """Run ``rlexp join`` with ``words`` in ``number`` processes; return the exit code of the first that failed.

    A signal is passed on to all of them, once. They have a group of their own: a terminal sends them none.
    """
    variables = {**environment, PARENT_VARIABLE: str(os.getpid())}
    command = [sys.executable, "-m", "rlexp", "join", *words]
    with DrainRequest() as request:
        processes = [subprocess.Popen(command, env=variables, process_group=0) for _ in range(number)]
        try:
            return _codes(processes, request)
        finally:
            _end(processes)


def _codes(processes: Sequence[subprocess.Popen[bytes]], request: DrainRequest) -> int:
    """Wait until all have ended, or may take no longer to; return the exit code of all of them together."""
    deadline_s: float | None = None
    while any(process.poll() is None for process in processes):
        if request() and deadline_s is None:
            deadline_s = time.monotonic() + END_TIMEOUT_S
            for process in processes:
                process.send_signal(request.signal or signal.SIGTERM)
        if deadline_s is not None and time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    failed = (process.returncode for process in processes if process.returncode)
    return request.exit_code or next(failed, 0)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
