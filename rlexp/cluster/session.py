"""The Ray in which a command trains, by an option or the environment, and Session: that Ray for the command's time.

``OwnRay`` and ``JoinedRay`` are the two kinds of a session; their common parts and errors are here.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from rlexp.cluster.environment import LOCAL, OWN_ADDRESS, RAY_ADDRESS
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.family import SESSION, SessionFolder, TemporaryFolder
from rlexp.processes.threads import Function, RayThread
from rlexp.text import masked, seconds_of

if TYPE_CHECKING:
    from rlexp.cluster.quick_start.fork_server import ForkServer
    from rlexp.cluster.room.machine import Cluster

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
        _refuse_options_of_clusters(wait, sends_folder)
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


def _refuse_options_of_clusters(wait: str | None, sends_folder: bool) -> None:
    given = next((name for name, is_given in (("--wait", wait), ("--working-dir", sends_folder)) if is_given), None)
    if given is not None:
        raise UsageError(f"{given} is for clusters, and no address of one was given", "add --address HOST:PORT")


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
