"""Probing a cluster before anything is created: what its nodes report, and what prevents experiments there.

A separate process asks them, since Ray may wait for ever.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rlexp import __version__
from rlexp.cluster.environment import AUTH_MODE, auth_modes, has_token, runtime_env
from rlexp.cluster.room.machine import Cluster, ClusterNode, Machine
from rlexp.cluster.session import AUTO
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.errors import Problem, ResourceError
from rlexp.processes.child import ChildProcess, Message

_UNKNOWN = "none"
VERSIONS_HINT = "install the same versions of Python, Ray and rlexp on every node"
IMPORT_HINT = "install it on every node, or send the current folder to the nodes with --working-dir"
REACH_HINT = "open the firewall between the node and the server, or give an address that every node reaches"
FILE_HINT = "copy it to the same path on every node"
NODE_HINT = "the logs of Ray on this node, in /tmp/ray/session_latest/logs, say more; ray status shows the nodes"
_SILENCE_HINTS = {
    "busy": "the node is busy: try again when it has less to do; ray status shows what the cluster is used for",
    "unreached": "open the network between this machine and the node, or start Ray there again; or remove the node",
}


@dataclass(frozen=True)
class NodeReport:
    """One node, as the cluster and the node itself describe it."""

    node: ClusterNode
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of Python and packages, by name; missing ones are left out."""
    problems: tuple[Problem, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterReport:
    """All nodes of a cluster."""

    address: str
    """Address of its head, ``HOST:PORT``."""
    nodes: tuple[NodeReport, ...]
    notices: tuple[str, ...] = ()
    """Notes for the user about nodes that are not among ``nodes``."""
    auth_mode: str = "disabled"
    """The value of RAY_AUTH_MODE with which it can be joined."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(tuple(report.node for report in self.nodes))

    def refuse_problems(self) -> None:
        """Raise ResourceError, with a line for each problem of a node."""
        problems = [problem for report in self.nodes for problem in report.problems]
        if problems:
            first, *more = problems
            raise ResourceError(first.message, first.hint, more)


def versions_here() -> dict[str, str]:
    """Return the versions with which the nodes are compared."""
    return {"python": platform.python_version(), "ray": version("ray"), "torch": version("torch"), "rlexp": __version__}


def report_of(
    address: str,
    answers: Sequence[Mapping[str, Any]],
    here: Mapping[str, str],
    auth_mode: str = "disabled",
    hints: Mapping[str, str] = MappingProxyType({}),
) -> ClusterReport:
    """Return the report on the cluster at ``address`` from the answers of ``probe_process``; ``here``: versions.

    ``hints`` say what to do if a module or a server is missing, by its name.
    """
    names = _names(answers)
    there = [(answer, names[answer["id"]]) for answer in answers if not answer.get("has_left")]
    gone = tuple(f"node {names[answer['id']]} has left the cluster" for answer in answers if answer.get("has_left"))
    nodes = (_node_report(answer, name, here, hints) for answer, name in there)
    return ClusterReport(address, tuple(sorted(nodes, key=lambda report: not report.node.is_driver)), gone, auth_mode)


def _names(answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the address of each node, by its id; with a part of the id if several nodes share an address."""
    addresses = [answer["address"] for answer in answers]
    return {
        answer["id"]: answer["address"]
        if addresses.count(answer["address"]) == 1
        else f"{answer['address']} ({answer['id'][:6]})"
        for answer in answers
    }


def _node_report(answer: Mapping[str, Any], name: str, here: Mapping[str, str], hints: Mapping[str, str]) -> NodeReport:
    facts = answer.get("facts") or {}
    machine = Machine(
        cpus=int(answer["cpus"]),
        gpus=int(answer["gpus"]),
        memory_total=facts.get("memory_total") or 0,
        memory_available=facts.get("memory_available") or 0,
    )
    is_driver = answer["is_driver"]
    node = ClusterNode(name, machine, answer["custom"], is_driver, is_driver or bool(facts.get("sees_out")))
    problems = tuple(_problems(name, answer, here, hints))
    notices = tuple(_notices(name, facts, here))
    if not (machine.cpus or machine.gpus or is_driver):  # a head that trials do not use
        notices = (*notices, *(problem.message for problem in problems))
        problems = ()
    return NodeReport(node, {key: facts[key] for key in here if facts.get(key)}, problems, notices)


def _problems(
    name: str, answer: Mapping[str, Any], here: Mapping[str, str], hints: Mapping[str, str]
) -> Iterator[Problem]:
    if "error" in answer:
        hint = _SILENCE_HINTS.get(answer.get("silence", ""), NODE_HINT)
        yield Problem("", f"node {name}: {answer['error']}", hint)
        return
    facts = answer["facts"]
    differing = [(key, facts[key] or _UNKNOWN, here[key]) for key in ("ray", "rlexp") if facts[key] != here[key]]
    if _minor(facts["python"]) != _minor(here["python"]):
        differing.insert(0, ("python", facts["python"], here["python"]))
    for key, there, mine in differing:
        if key not in facts["failed_imports"]:
            yield Problem("", f"node {name} has {key} {there}, this machine has {mine}", VERSIONS_HINT)
    for module, reason in facts["failed_imports"].items():
        yield Problem("", f"node {name} cannot import {module}: {reason}", hints.get(module, IMPORT_HINT))
    for server, reason in facts.get("unreachable", {}).items():
        yield Problem("", f"node {name} cannot reach {server}: {reason}", hints.get(server, REACH_HINT))
    for path in facts.get("missing_files", ()):
        yield Problem("", f"node {name} cannot read {path}", FILE_HINT)


def _notices(name: str, facts: Mapping[str, Any], here: Mapping[str, str]) -> Iterator[str]:
    """Yield differences that are not problems by themselves."""
    for key in ("python", "torch"):
        there = facts.get(key)
        is_minor = key != "python" or _minor(there or "") == _minor(here["python"])
        if facts and there != here[key] and is_minor:
            yield f"node {name} has {key} {there or _UNKNOWN}, this machine has {here[key]}"


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]


REACH_TIMEOUT_S: Final = 3.0
"""Seconds that the head may take to accept a connection."""
LOAD_TIMEOUT_S: Final = 60.0
"""Seconds that importing Ray may take."""
CONNECT_TIMEOUT_S: Final = 15.0
"""Seconds that connecting may take: with a wrong token, Ray tries for ever."""
SILENCE_S: Final = 60.0
"""Seconds without a message from the process that waits for the nodes; it decides itself how long to wait for them."""
_LOOK_INTERVAL_S: Final = 1.0
_MODULE: Final = "rlexp.cluster.probe_process"
_VARIABLES: Final = {"RAY_gcs_server_request_timeout_seconds": "8"}
"""Seconds for which Ray looks for its own node on this machine; its 60 s are longer than connecting may take."""
_REFUSED_TOKEN: Final = re.compile(r"Unauthenticated|InvalidAuthToken")
"""Ray's repeated output if the head does not accept the token."""
_NO_TOKEN: Final = re.compile(r"token authentication|auth(entication)? token", re.IGNORECASE)
"""Ray's error if it should use a token and finds none."""
_VERSIONS: Final = re.compile(r"Ray: (\S+).*?Python: (\S+)", re.DOTALL)
_SILENT: Final = "it accepts connections, but did not answer as Ray does"
_LOCAL_HINT: Final = "check --address; --address local trains in a Ray of its own on this machine"
_NODE_HINT: Final = "ray start --address {0} --num-cpus 0 makes it one; ray job submit (rlexp[cluster]) needs none"


@dataclass(frozen=True)
class Question:
    """The questions to the nodes, beside their versions and resources."""

    modules: tuple[str, ...] = ()
    """Modules that they must be able to import."""
    packages: tuple[str, ...] = ()
    """Packages that must be installed there."""
    folders: tuple[str, ...] = ()
    """Folders that may have modules, beside the installed ones."""
    out: Path | None = None
    """The directory of runs, which nodes may see."""
    servers: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Servers that they must reach: hosts and ports, by the names in messages."""
    files: tuple[str, ...] = ()
    """Files that they must be able to read."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What to do if a package or a server is missing, by its name."""
    runtime_env: Mapping[str, Any] | None = None
    """What they get from this machine."""


def probe_cluster(address: str, question: Question = Question()) -> ClusterReport:
    """Return what the nodes of the cluster at ``address`` (or AUTO) report.

    Raises ResourceError if there is no cluster, or none that this machine and its token may use.
    """
    with _marker(question.out) as marker:
        names = ("modules", "packages", "folders", "servers", "files")
        asked = {name: getattr(question, name) for name in names} | {"marker": marker and str(marker)}
        given = dict(question.runtime_env or runtime_env((), NO_MODULES, os.environ))
        connected, answered = _asked(address, {"asked": asked, "runtime_env": given})
    answers, mode = answered["nodes"], connected["auth_mode"]
    return report_of(connected["address"], answers, versions_here(), mode, question.hints)


def ask_for_bundles(address: str, bundles: Sequence[Mapping[str, float]]) -> None:
    """Ask the cluster's autoscaler, if it has one, for room for ``bundles``, beside all that is in use.

    Raises ResourceError as ``probe_cluster`` does.
    """
    _asked(address, {"bundles": [dict(bundle) for bundle in bundles], "runtime_env": {}})


def _asked(address: str, request: Mapping[str, Any]) -> tuple[Message, Message]:
    """Return the messages of a separate process: that it is connected, and then the answer."""
    if address != AUTO:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ResourceError(f"no Ray cluster at {address}: {reason}", _LOCAL_HINT) from None
    first, *more = auth_modes(os.environ, Path.home())
    try:
        return _asked_with(first, address, request)
    except _TokenError:
        if not more:
            raise
    return _asked_with(more[0], address, request)


def _asked_with(mode: str, address: str, request: Mapping[str, Any]) -> tuple[Message, Message]:
    try:
        with ChildProcess(_MODULE, {"address": address, **request}, {AUTH_MODE: mode, **_VARIABLES}) as process:
            _message(process, LOAD_TIMEOUT_S, "Ray was not imported here")
            connected = _message(process, CONNECT_TIMEOUT_S, _SILENT)
            while (answered := _message(process, SILENCE_S, "it does not say more"))["kind"] == "waiting":
                pass
    except _FailedError as error:
        raise _error(address, str(error), process.printed) from None
    return {**connected, "auth_mode": mode}, answered


class _FailedError(Exception):
    """Raised if the process did not send the expected message; the text is the reason."""


def _message(process: ChildProcess, timeout_s: float, otherwise: str) -> Message:
    """Return the next message; ``otherwise`` is the error text if none comes in time, or Ray prints why it waits."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            message = process.message(min(_LOOK_INTERVAL_S, max(deadline_s - time.monotonic(), 0)))
            break
        except TimeoutError:
            if time.monotonic() >= deadline_s or _REFUSED_TOKEN.search(process.printed):
                raise _FailedError(f"{otherwise} within {timeout_s:g} s") from None
    if message is None:
        raise _FailedError(f"the process that asks it {process.how_it_ended()}: {process.last_line()}")
    if message["kind"] == "failed":
        raise _FailedError(message["error"])
    return message


def _error(address: str, error: str, output: str) -> ResourceError:
    """Return why a cluster cannot be joined, from errors and output of Ray."""
    versions = _VERSIONS.findall(error) if "ersion mismatch" in error else []
    if versions:
        (ray, python), here = versions[0], versions_here()
        message = f"the cluster at {address} has Ray {ray} with Python {python}"
        return ResourceError(
            f"{message}, this machine has Ray {here['ray']} with Python {here['python']}",
            "use the same versions on every node and here",
        )
    if _REFUSED_TOKEN.search(error + output) or _NO_TOKEN.search(error):
        return _token_error(address)
    if "resolve node to connect to" in error:
        return ResourceError(f"this machine is not a node of the cluster at {address}", _NODE_HINT.format(address))
    if address == AUTO and "find any running Ray" in error:
        hint = "ray start makes it a node of a cluster; or --address local"
        return ResourceError("no Ray runs on this machine", hint)
    what = error.strip().partition("\n")[0] or f"{_SILENT} within {CONNECT_TIMEOUT_S:g} s"
    return ResourceError(f"cannot join the cluster at {address}: {what}", _LOCAL_HINT)


class _TokenError(ResourceError):
    """Raised if the cluster wants a token, or another one."""


def _token_error(address: str) -> _TokenError:
    if os.environ.get(AUTH_MODE) == "disabled":
        return _TokenError(f"the cluster at {address} wants a token", f"{AUTH_MODE}=disabled sends none: unset it")
    hint = "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH for a file, gives the one that the cluster was started with"
    if has_token(os.environ, Path.home()):
        return _TokenError(f"the cluster at {address} does not accept the token that was found here", hint)
    return _TokenError(f"the cluster at {address} wants a token, and none was found here", hint)


@contextmanager
def _marker(out: Path | None) -> Iterator[Path | None]:
    """Write a file for the time of its body: in ``out``, or the nearest existing folder above it."""
    if out is None:
        yield None
        return
    folder = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    marker = folder / f".rlexp-probe-{uuid.uuid4().hex}"
    try:
        marker.touch(exist_ok=False)
    except OSError:  # whether a run can be created there is found out later
        yield None
        return
    try:
        yield marker
    finally:
        with suppress(OSError):
            marker.unlink()
