"""A Ray of our own for one command: started quietly, called in a thread, and ended with all its processes and files."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from rlexp.cluster.quick_start.raylet import job_without_folders, only_needed_services
from rlexp.cluster.room import this_machine
from rlexp.cluster.room.machine import Cluster
from rlexp.cluster.session import RayStartError, RayStoppedError, within
from rlexp.processes.family import SESSION, SessionFolder, family_of, has_ended, kill
from rlexp.processes.threads import Function, RayThread

if TYPE_CHECKING:
    from rlexp.cluster.quick_start.fork_server import ForkServer

DISCONNECT_S = 0.5
"""How long this process may take to disconnect from Ray before Ray's processes are killed."""
START_TIMEOUT_S = 180.0
"""How long Ray may take to start; on a busy machine it takes up to a minute."""
SHUTDOWN_TIMEOUT_S = 10.0
"""How long Ray may take to shut down."""
_SERVERS = ("gcs_server", "raylet")
"""The processes without which Ray does nothing: the registry of everything, and the node's manager."""


class OwnRay:
    """Owns a local Ray between ``__enter__`` and ``__exit__``, its processes and its temporary folder.

    Where this process dies in between, a guard ends them in its place.
    """

    is_joined = False
    is_abandoned = False
    """Where a server is gone, a call would wait a minute for it, and may crash while the thread is in another one."""

    def __init__(
        self,
        num_cpus: int,
        num_gpus: int,
        debug: bool,
        num_processes: int = 1,
        fork_server: ForkServer | None = None,
    ) -> None:
        """``num_processes``: of actors, which are started ahead where no ``fork_server`` makes them quickly."""
        self.cluster = Cluster.of(replace(this_machine(), cpus=num_cpus, gpus=num_gpus))
        self._num_cpus = num_cpus
        self._num_gpus = num_gpus
        self._num_processes = num_processes
        self._debug = debug
        self._fork_server = fork_server
        self._folder: SessionFolder | None = None
        self._servers: dict[str, psutil.Process] = {}
        self._thread = RayThread()

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder.path

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        self._thread.call(function, self._check, *checks)

    def leave(self) -> None:
        self.is_abandoned = self.is_abandoned or not self._thread.is_free()

    def __enter__(self) -> Self:
        self._folder = SessionFolder() if self._fork_server is None else self._fork_server.folder
        try:
            _use_own_token(self.folder)
            os.environ[SESSION] = str(self.folder)
            self._start_ray(self.folder)
            self._servers = _servers()
        except BaseException:
            self._stop()
            raise
        return self

    def _start_ray(self, folder: Path) -> None:
        """Start Ray. In the main thread it would take the handler of SIGTERM at once, and could lose the signal."""
        import ray

        socket = None if self._fork_server is None else self._fork_server.path
        services = only_needed_services(self._num_cpus, self._num_processes, self._debug, socket)

        def start() -> None:
            with _blocked(signal.SIGHUP, signal.SIGTERM), services as system_config:
                ray.init(
                    address="local",
                    num_cpus=self._num_cpus,
                    num_gpus=self._num_gpus,
                    include_dashboard=False,
                    configure_logging=True,
                    # A failed trial is reported by us, in a line; Tune would log its whole traceback.
                    logging_level=level,
                    log_to_driver=self._debug,
                    _temp_dir=str(folder / "ray"),
                    job_config=job_without_folders(),
                    _system_config=system_config,
                )

        level = logging.INFO if self._debug else logging.CRITICAL
        logging.getLogger("ray").setLevel(level)  # also for what Ray logs before it looks at its arguments
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

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _check(self) -> None:
        for name, process in self._servers.items():
            if has_ended(process):
                self.is_abandoned = True
                raise RayStoppedError(f"Ray stopped: its process {name} (pid {process.pid}) ended unexpectedly")

    def _stop(self) -> None:
        assert self._folder is not None
        family = family_of(self.folder)
        self.leave()
        if not self.is_abandoned:
            self._shut_down_ray(family)
        os.environ.pop(SESSION, None)
        kill(family)  # also children with another environment, whose parents have ended
        if os.environ.get("RAY_AUTH_TOKEN_PATH") == str(self.folder / "auth_token"):
            del os.environ["RAY_AUTH_TOKEN_PATH"]
        self._folder.remove()
        self._thread.close()

    def _shut_down_ray(self, family: list[psutil.Process]) -> None:
        """Leave Ray, then kill its processes: the SIGTERM that Ray sends is blocked in them."""
        import ray

        kill_s = time.monotonic() + DISCONNECT_S

        def check() -> None:
            if time.monotonic() > kill_s:
                kill(family)

        self.is_abandoned = True  # unless the call ends: it may also be interrupted
        with suppress(TimeoutError):
            self._thread.call(ray.shutdown, within(SHUTDOWN_TIMEOUT_S, TimeoutError()), check)
            self.is_abandoned = False


@contextmanager
def _blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back from this thread; for the processes that it starts meanwhile, for ever.

    A terminal that is closed sends SIGHUP to all processes of the command, ``timeout`` and job schedulers send
    SIGTERM to all of them, and a trial needs all of Ray to save.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _servers() -> dict[str, psutil.Process]:
    """Return the processes of this process's Ray that are called as _SERVERS says, by name."""
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
