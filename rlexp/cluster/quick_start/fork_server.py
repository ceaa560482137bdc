"""A fork server for the processes of a Ray of our own: they start in a part of a second, and share what was imported.

The process of a trial imports Ray, Tune and PyTorch, which takes three seconds of a core, and that of a worker one
second. The fork server imports all but Tune once, beginning while the command still reads its files. Only on Linux: on
others, libraries of the system do not allow that a process forks which has loaded them.
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
from rlexp.cluster.environment import set_ray_environment
from rlexp.cluster.joined import check_loopback
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
"""Most of what processes of trials and workers import; not Tune, whose import lets Ray draw random numbers."""
_PACKAGES: Final = Path(rlexp.__file__).parents[1]
"""Where this package is imported from."""
_END_TIMEOUT_S: Final = 5.0
_MOST_WAITING: Final = 128
"""How many processes may wait to be forked."""
_VARIABLES: Final = {
    # What gives processes their names would else write over the variables, by which they are found.
    "SPT_NOENV": "1",
    # PyArrow's allocator would start a thread as it is imported, and a process that has threads is not forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # Of those that a raylet gives to its processes, Ray reads this one when it is imported, and never again. It is the
    # job of a process: none yet, as for all that are started ahead.
    "RAY_JOB_ID": "ffffffff",
}


class ForkServer:
    """Owns the process, and the folder of the session that it belongs to, from construction to ``close``."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """Start it; it imports ``modules``, and forks no process before it has them. Raises OSError."""
        self.folder = SessionFolder()
        self.path = self.folder.path / "fork_server"
        """The socket at which processes are asked for."""
        try:
            self._process = self._started(modules)
            Path(f"{self.path}{PID_FILE}").write_text(str(self.pid), encoding="ascii")
        except BaseException:
            self.folder.remove()
            raise

    def _started(self, modules: Sequence[str]) -> Child:
        # Read once as well, and the process with which one ends: this one, as the raylet ends with it, too.
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
        """The process that is the parent of all that were forked."""
        return self._process.pid

    def close(self) -> None:
        """End it, and remove the folder; a second call does nothing."""
        self._process.kill()
        try:
            self._process.wait(_END_TIMEOUT_S)
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self.folder.remove()


@contextmanager
def prepared(joining: Joining, debug: bool) -> Iterator[Joining]:
    """Set Ray's variables, and start a fork server for a Ray of the command's own; yield ``joining`` with it.

    Raises ResourceError where no such Ray could start.
    """
    set_ray_environment(debug, joins=joining.address is not None)
    if joining.address is None:
        check_loopback()
    if joining.address is not None or FORK_SERVER.refusal() is not None:
        yield joining
        return
    try:
        server = ForkServer()
    except OSError:  # no room for the folder, or no socket has a path this long: Ray reports the same, and what to do
        yield joining
        return
    try:
        yield replace(joining, fork_server=server)
    finally:
        server.close()
