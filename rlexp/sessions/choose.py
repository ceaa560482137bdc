"""Which Ray a command trains in: one of its own, or a cluster that an option or the environment names."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rlexp.errors import UsageError
from rlexp.processes.family import SESSION
from rlexp.runs.secrets import masked
from rlexp.sessions.ray_environment import LOCAL, OWN_ADDRESS, RAY_ADDRESS

if TYPE_CHECKING:
    from rlexp.sessions.fork_server import ForkServer

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
