"""An own Ray for one command: started quietly, called in a thread, and ended with all its processes and files."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rlexp.cluster.quick_start.raylet import job_without_folders, only_needed_services
from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.cluster.session import RayStartError, RayStoppedError, Session, within
from rlexp.processes.family import SESSION, SessionFolder, family_of, has_ended, kill

if TYPE_CHECKING:
    from rlexp.cluster.quick_start.fork_server import ForkServer

DISCONNECT_S = 0.5
"""Seconds that this process may take to disconnect from Ray before Ray's processes are killed."""
START_TIMEOUT_S = 180.0
"""Seconds that Ray may take to start; on a busy machine it takes up to a minute."""
_SERVERS = ("gcs_server", "raylet")
"""The processes that Ray needs for everything: the global registry, and the node's manager."""


class OwnRay(Session):
    """Owns a local Ray between ``__enter__`` and ``__exit__``, its processes and its temporary folder.

    If this process dies in between, a guard ends them.
    """

    is_joined = False

    def __init__(
        self,
        num_cpus: int,
        num_gpus: int,
        debug: bool,
        num_processes: int = 1,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Initialise; ``num_processes`` of actors are started ahead if no ``fork_server`` makes them quickly."""
        super().__init__(Cluster.of(replace(this_machine(), cpus=num_cpus, gpus=num_gpus)), debug)
        self._num_processes = num_processes
        self._fork_server = fork_server
        self._servers: dict[str, psutil.Process] = {}

    def _make_folder(self) -> SessionFolder:
        return SessionFolder() if self._fork_server is None else self._fork_server.folder

    def _begin(self) -> None:
        _use_own_token(self.folder)
        os.environ[SESSION] = str(self.folder)
        self._start_ray()
        self._servers = _servers()

    def _start_ray(self) -> None:
        """Start Ray. In the main thread it would take the handler of SIGTERM at once, and could lose the signal."""
        import ray

        machine, logging_options = self.cluster.nodes[0].machine, self._logging()
        socket = None if self._fork_server is None else self._fork_server.path
        services = only_needed_services(machine.cpus, self._num_processes, self._debug, socket)

        def start() -> None:
            with _blocked(signal.SIGHUP, signal.SIGTERM), services as system_config:
                ray.init(
                    address="local",
                    num_cpus=machine.cpus,
                    num_gpus=machine.gpus,
                    include_dashboard=False,
                    _temp_dir=str(self.folder / "ray"),
                    job_config=job_without_folders(),
                    _system_config=system_config,
                    **logging_options,
                )

        hint = "do other programs leave it a core and memory? --debug shows what Ray reports"
        too_late = RayStartError(f"Ray did not start within {START_TIMEOUT_S:g} s", hint)
        try:
            self._thread.call(start, within(START_TIMEOUT_S, too_late))
        except RayStartError:
            self.is_abandoned = True
            raise
        except Exception as error:  # Ray has no class for it
            what = str(error).partition("\n")[0]
            raise RayStartError(f"Ray did not start: {what}", "try it again; --debug shows what Ray reports") from error

    def _check(self) -> None:
        for name, process in self._servers.items():
            if has_ended(process):
                self.is_abandoned = True
                raise RayStoppedError(f"Ray stopped: its process {name} (pid {process.pid}) ended unexpectedly")

    def _end(self) -> None:
        """Leave Ray, then kill its processes, as Ray's SIGTERM is blocked in them."""
        assert self._folder is not None
        family = family_of(self.folder)
        self.leave()
        kill_s = time.monotonic() + DISCONNECT_S

        def check() -> None:
            if time.monotonic() > kill_s:
                kill(family)

        self._disconnect(check)
        os.environ.pop(SESSION, None)
        kill(family)  # also children with another environment, whose parents have ended
        if os.environ.get("RAY_AUTH_TOKEN_PATH") == str(self.folder / "auth_token"):
            del os.environ["RAY_AUTH_TOKEN_PATH"]
        self._folder.remove()
        self._thread.close()


@contextmanager
def _blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in this thread, and for ever in processes that it starts meanwhile.

    A closed terminal sends SIGHUP to all processes of the command, ``timeout`` and job schedulers send SIGTERM to all.
    A trial needs all of Ray for saving.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _servers() -> dict[str, psutil.Process]:
    """Return the processes of this process's Ray with the names in _SERVERS, by name."""
    children = {child.name(): child for child in psutil.Process().children()}
    return {name: children[name] for name in _SERVERS}


def _use_own_token(folder: Path) -> None:
    """Give this Ray a token that only this user can read; Ray's own is in ``~/.ray``, readable for all."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    token = folder / "auth_token"
    with open(os.open(token, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
