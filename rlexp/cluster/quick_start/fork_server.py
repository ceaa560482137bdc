"""A fork server for our own Ray's processes, which then start in part of a second and share imported modules.

The process of a trial imports Ray, Tune and PyTorch, which takes three seconds of a core, and a worker's process one
second. The fork server imports all except Tune once, from when the command still reads its files. Linux only: on other
systems, a process that has loaded some system libraries must not fork.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import rlexp
from rlexp.cluster.environment import check_loopback, set_ray_environment
from rlexp.cluster.quick_start import fork_server_process
from rlexp.cluster.quick_start.raylet_script import PID_FILE
from rlexp.cluster.session import Joining
from rlexp.cluster.shortcuts import FORK_SERVER
from rlexp.processes.child import Child, start_child
from rlexp.processes.family import SESSION, SessionFolder

MODULES: Final = (
    "numpy",
    "gymnasium",
    "ray._private.workers.default_worker",
    "rlexp.rollout.worker",
    "pyarrow.fs",
    "pandas",
    "fsspec",
    "torch",
    "rlexp.agents.apex.agent",
    "rlexp.agents.dqn.learner",
    "rlexp.runs.keeper",
)
"""Most imports of processes of trials and workers; not Tune, whose import lets Ray draw random numbers."""
_PACKAGES: Final = Path(rlexp.__file__).parents[1]
"""The folder from which this package is imported."""
_END_TIMEOUT_S: Final = 5.0
_MOST_WAITING: Final = 128
"""Most processes that may wait to be forked."""
_VARIABLES: Final = {
    # setproctitle would overwrite the environment that we search for.
    "SPT_NOENV": "1",
    # PyArrow's allocator would start a thread at import, and a process with threads is not forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # Ray reads only this variable of a raylet's processes at import, and never again. It is the job of a process: none
    # yet, as for all that are started ahead.
    "RAY_JOB_ID": "ffffffff",
}


class ForkServer:
    """Owns the process, and the folder of its session, from construction to ``close``."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """Start it; it imports ``modules`` and forks processes only after that. Raises OSError."""
        self.folder = SessionFolder()
        self.path = self.folder.path / "fork_server"
        """The socket for requests of processes."""
        try:
            self._process = self._started(modules)
            Path(f"{self.path}{PID_FILE}").write_text(str(self.pid), encoding="ascii")
        except BaseException:
            self.folder.remove()
            raise

    def _started(self, modules: Sequence[str]) -> Child:
        # Also read once: the process with which it ends. It is this one, as the raylet ends with it too.
        variables = {**_VARIABLES, "RAY_RAYLET_PID": str(os.getpid()), SESSION: str(self.folder.path)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.path))
            listener.listen(_MOST_WAITING)
            descriptor, script = listener.fileno(), str(fork_server_process.__file__)
            return start_child(
                [sys.executable, script, str(descriptor), str(_PACKAGES), *modules],
                environment={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                passed=(descriptor,),
            )

    @property
    def pid(self) -> int:
        """Pid of the parent of all forked processes."""
        return self._process.pid

    def close(self) -> None:
        """End it, and remove the folder; idempotent."""
        self._process.kill()
        try:
            self._process.wait(_END_TIMEOUT_S)
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self.folder.remove()


@contextmanager
def prepared(joining: Joining, debug: bool) -> Iterator[Joining]:
    """Set Ray's variables, and start a fork server if the command has its own Ray; yield ``joining`` with it.

    Raises ResourceError if no such Ray could start.
    """
    set_ray_environment(debug, joins=joining.address is not None)
    if joining.address is None:
        check_loopback()
    if joining.address is not None or FORK_SERVER.refusal() is not None:
        yield joining
        return
    try:
        server = ForkServer()
    except OSError:  # no room, or the path is too long for a socket: Ray reports it, with a remedy
        yield joining
        return
    try:
        yield replace(joining, fork_server=server)
    finally:
        server.close()
