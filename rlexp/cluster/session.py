"""Which Ray a command trains in, as an option or the environment says, and Session: that Ray for the command's time.

``OwnRay`` and ``JoinedRay`` are the two kinds of a session; what both raise and share is here.
"""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from rlexp.cluster.environment import LOCAL, OWN_ADDRESS, RAY_ADDRESS
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.family import SESSION
from rlexp.processes.threads import Function
from rlexp.text import masked

if TYPE_CHECKING:
    from rlexp.cluster.quick_start.fork_server import ForkServer
    from rlexp.cluster.room.machine import Cluster

AUTO: Final = "auto"
"""The address of the cluster that this machine is a node of."""
ADDRESS_OPTION: Final = "--address"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
LONGEST_S: Final = 10 * 365 * 86400.0
"""Timers of the operating system take no much longer waits."""
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Joining:
    """Which Ray a command trains in, and how."""

    address: str | None = None
    """``HOST:PORT`` of a cluster's head, or AUTO; None: a Ray of our own on this machine."""
    wait_s: float | None = None
    """How long to wait until the cluster has room, in seconds; None: not at all."""
    sends_folder: bool = False
    """Whether the whole current folder is sent to the nodes, not only the modules that the experiments name."""
    fork_server: ForkServer | None = None
    """What the processes of a Ray of our own are forked from; None: each is started anew."""


OWN: Final = Joining()


def choose(
    option: str | None, environment: MutableMapping[str, str], wait: str | None = None, sends_folder: bool = False
) -> Joining:
    """Return what the option, else RLEXP_ADDRESS, else RAY_ADDRESS asks for, and remove Ray's own variable.

    So nothing joins that address unasked: an env may call ``ray.init()``, which would. Raises UsageError.
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
    """Return the address that wins, and who names it."""
    if option is not None:
        return ADDRESS_OPTION, option.strip()
    own = environment.get(OWN_ADDRESS, "").strip()
    if own or SESSION in environment:  # within an env of a run: it is not the user who has set Ray's
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
        raise UsageError(f"{given} is no address", "write HOST:PORT, auto for this machine's cluster, or local")


def _refuse_options_of_clusters(wait: str | None, sends_folder: bool) -> None:
    given = next((name for name, is_given in (("--wait", wait), ("--working-dir", sends_folder)) if is_given), None)
    if given is not None:
        raise UsageError(f"{given} is for clusters, and no address of one was given", "add --address HOST:PORT")


def seconds_of(text: str, option: str) -> float:
    """Return the duration that ``option`` gives, ``30s``, ``10m`` or ``2h``, in seconds; raises UsageError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text} is no duration", f"write {option} 30s, 10m or 2h")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > LONGEST_S:
        raise UsageError(f"{option} {text:.60} is more than 10 years", f"write {option} 30s, 10m or 2h")
    return seconds


class RayStartError(RlexpError):
    """Ray could not be started, or not be joined."""


class RayStoppedError(RlexpError):
    """A part of Ray that every trial needs has ended, or cannot be reached, while trials ran."""

    exit_code = 5


class Session(Protocol):
    """A Ray between ``__enter__`` and ``__exit__``, called in one thread; :class:`OwnRay` and :class:`JoinedRay`."""

    @property
    def cluster(self) -> Cluster:
        """The nodes that trials may use; known before it is entered."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether it is somebody's cluster, which goes on without this command."""
        ...

    @property
    def is_abandoned(self) -> bool:
        """Whether the rest of Ray is left without a call to it, which might wait for a minute or crash."""
        ...

    @property
    def folder(self) -> Path:
        """Where its temporary files are, on this machine; only while it is entered."""
        ...

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        """Call a function that uses Ray in a thread; raises what it raises, or what one of ``checks`` raises meanwhile.

        Raises RayStoppedError where a part without which Ray cannot work is lost.
        """
        ...

    def leave(self) -> None:
        """Abandon Ray where the function that was called last has not ended, nor ends soon."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def within(seconds: float, error: Exception) -> Callable[[], None]:
    """Return a check for ``Session.call`` that raises ``error`` once so many seconds are over."""
    end_s = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end_s:
            raise error

    return check


def exit_without_ray(code: int) -> None:
    """Let the interpreter end with ``code`` before Ray's own exit handlers, which would wait for an abandoned Ray."""
    atexit.register(os._exit, code)  # what is registered last is called first
