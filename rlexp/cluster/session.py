"""The Ray in which a command trains, by an option or the environment, and Session: that Ray for the command's time.

``OwnRay`` is started quietly for one command, called in a thread, and ended with all its processes and files. The other
kind of session, ``JoinedRay``, has a file of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import psutil

from rlexp.cluster.environment import LOCAL, OWN_ADDRESS, RAY_ADDRESS, check_loopback, set_ray_environment
from rlexp.cluster.quick_start.raylet import ForkServer, job_without_folders, only_needed_services
from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.cluster.shortcuts import FORK_SERVER
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.family import SESSION, SessionFolder, TemporaryFolder, family_of, has_ended, kill
from rlexp.processes.threads import Function, RayThread
from rlexp.text import masked, seconds_of

AUTO: Final = "auto"
"""The address of the cluster that has this machine as a node."""
ADDRESS_OPTION: Final = "--address"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}")
SHUTDOWN_TIMEOUT_S: Final = 10.0
"""Seconds that Ray may take to shut down, or to disconnect from a cluster."""


@dataclass(frozen=True)
class Joining:
    """The Ray in which a command trains, and how."""

    address: str | None = None
    """``HOST:PORT`` of a cluster's head, or AUTO; None: our own Ray on this machine."""
    wait_s: float | None = None
    """Seconds to wait until the cluster has room; None: no wait."""
    sends_folder: bool = False
    """Whether the whole current folder is sent to the nodes, and not only the experiments' modules."""
    fork_server: ForkServer | None = None
    """The server that forks processes of our own Ray; None: each is started anew."""


OWN: Final = Joining()


def choose(
    option: str | None, environment: MutableMapping[str, str], wait: str | None = None, sends_folder: bool = False
) -> Joining:
    """Return the Ray that the option, else RLEXP_ADDRESS, else RAY_ADDRESS names, and remove Ray's own variable.

    So nothing joins that address unasked, as an env's ``ray.init()`` would. Raises UsageError.
    """
    name, address = _named(option, environment)
    if address == AUTO and environment.get(RAY_ADDRESS, "").strip() not in ("", LOCAL):
        name, address = RAY_ADDRESS, environment[RAY_ADDRESS].strip()
    environment.pop(RAY_ADDRESS, None)
    wait_s = None if wait is None else seconds_of(wait, "--wait")
    if address in ("", LOCAL):
        for given, is_given in (("--wait", wait), ("--working-dir", sends_folder)):
            if is_given:
                message = f"{given} is for clusters, and no address of one was given"
                raise UsageError(message, "add --address HOST:PORT")
        return OWN
    if address != AUTO:
        _refuse_other_addresses(name, address)
    return Joining(address, wait_s, sends_folder)


def _named(option: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the address with priority, and its source."""
    if option is not None:
        return ADDRESS_OPTION, option.strip()
    own = environment.get(OWN_ADDRESS, "").strip()
    if own or SESSION in environment:  # within an env of a run: the user has not set Ray's variable
        return OWN_ADDRESS, own
    return RAY_ADDRESS, environment.get(RAY_ADDRESS, "").strip()


def _refuse_other_addresses(name: str, address: str) -> None:
    given = f"{name} {address}" if name == ADDRESS_OPTION else f"{name}={address}"
    if "://" in address:
        message = f"{masked(given)} is not the address of a cluster's head: rlexp runs on a node of the cluster"
        head = re.sub(r"^.*@", "", address.partition("://")[2]).partition("/")[0].rpartition(":")[0] or "HEAD"
        command = f"ray job submit --address http://{head}:8265 -- rlexp run FILE --address auto"
        hint = f"with rlexp[cluster] installed here and on the head: {command}"
        raise UsageError(message, hint)
    if not _HOST_AND_PORT.fullmatch(address):
        raise UsageError(f"{given} is not a valid address", "write HOST:PORT, auto (this machine's cluster) or local")


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


class RayStartError(RlexpError):
    """Raised if Ray could not be started, or not be joined."""


class RayStoppedError(RlexpError):
    """Raised if a part of Ray that every trial needs ended or cannot be reached while trials run."""

    exit_code = 5


class Session(ABC):
    """Owns a Ray between ``__enter__`` and ``__exit__``, and the thread in which all of it is called."""

    is_joined: ClassVar[bool]
    """Whether it is somebody's cluster, which continues without this command."""
    is_abandoned = False
    """Whether Ray gets no more calls. If a server is gone, one would wait a minute, and may crash beside the thread's.
    """

    def __init__(self, cluster: Cluster, debug: bool) -> None:
        """Initialise; ``debug``: show messages of Ray and its processes."""
        self.cluster = cluster
        """The nodes that trials may use."""
        self._debug = debug
        self._folder: SessionFolder | TemporaryFolder | None = None
        self._thread = RayThread()

    @property
    def folder(self) -> Path:
        """Folder of its temporary files on this machine; only while it is entered."""
        assert self._folder is not None
        return self._folder.path

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        """Call a function that uses Ray in a thread; raises its error, or an error of ``checks`` meanwhile.

        Raises RayStoppedError if a part is lost that Ray needs.
        """
        self._thread.call(function, self._check, *checks)

    def leave(self) -> None:
        """Abandon Ray if the last called function does not end soon."""
        self.is_abandoned = self.is_abandoned or not self._thread.is_free()

    def __enter__(self) -> Self:
        self._folder = self._make_folder()
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @abstractmethod
    def _make_folder(self) -> SessionFolder | TemporaryFolder: ...

    @abstractmethod
    def _begin(self) -> None:
        """Start or join Ray, by a call in the thread; raises RayStartError."""

    @abstractmethod
    def _check(self) -> None:
        """Abandon Ray and raise RayStoppedError if a part is lost that Ray needs; never waits."""

    @abstractmethod
    def _end(self) -> None:
        """Leave Ray, and end and remove the command's own parts, also after an incomplete begin."""

    def _logging(self) -> dict[str, Any]:
        """Return the log settings of ``ray.init``, and apply them before it looks at its arguments.

        We report a failed trial in a line; Tune would log its whole traceback.
        """
        level = logging.INFO if self._debug else logging.CRITICAL
        logging.getLogger("ray").setLevel(level)
        return {"configure_logging": True, "logging_level": level, "log_to_driver": self._debug}

    def _disconnect(self, *checks: Callable[[], None]) -> None:
        """Let Ray shut down unless it is abandoned; ``checks`` are called meanwhile."""
        if self.is_abandoned:
            return
        import ray

        self.is_abandoned = True  # unless the call ends: it may also be interrupted
        with suppress(TimeoutError):
            self._thread.call(ray.shutdown, within(SHUTDOWN_TIMEOUT_S, TimeoutError()), *checks)
            self.is_abandoned = False


def within(seconds: float, error: Exception) -> Callable[[], None]:
    """Return a check for ``Session.call`` that raises ``error`` after so many seconds."""
    end_s = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end_s:
            raise error

    return check


def exit_without_ray(code: int) -> None:
    """Let the interpreter end with ``code`` before Ray's own exit handlers, which would wait for an abandoned Ray."""
    atexit.register(os._exit, code)  # the last registered handler is called first


DISCONNECT_S = 0.5
"""Seconds that this process may take to disconnect from Ray before Ray's processes are killed."""
START_TIMEOUT_S = 180.0
"""Seconds that Ray may take to start; on a busy machine it takes up to a minute."""
_SERVERS = ("gcs_server", "raylet")
"""The processes that Ray needs for everything: the global registry, and the node's manager."""


class OwnRay(Session):
    """Owns a local Ray while it is entered, its processes and its folder; a guard ends them if this process dies."""

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
        children = {child.name(): child for child in psutil.Process().children()}
        self._servers = {name: children[name] for name in _SERVERS}

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


def _use_own_token(folder: Path) -> None:
    """Give this Ray a token that only this user can read; Ray's own is in ``~/.ray``, readable for all."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    token = folder / "auth_token"
    with open(os.open(token, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
