"""What the nodes of a cluster reported, and which of it keeps experiments from running there."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from rlexp import __version__
from rlexp.errors import Problem, ResourceError
from rlexp.machine import Machine
from rlexp.machine.cluster import Cluster, Node

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

    node: Node
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Python and packages, by name; without those that are not there."""
    problems: tuple[Problem, ...] = ()
    """What keeps experiments from running on it."""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterReport:
    """All nodes of a cluster."""

    address: str
    """Of its head, ``HOST:PORT``."""
    nodes: tuple[NodeReport, ...]
    notices: tuple[str, ...] = ()
    """What its user should know of nodes that are not among ``nodes``."""
    auth_mode: str = "disabled"
    """The value of RAY_AUTH_MODE with which it can be joined."""

    @property
    def cluster(self) -> Cluster:
        """Return the nodes that trials may use."""
        return Cluster(tuple(report.node for report in self.nodes))

    def refuse_problems(self) -> None:
        """Raise ResourceError, with a line for each problem of a node."""
        problems = [problem for report in self.nodes for problem in report.problems]
        if problems:
            first, *more = problems
            raise ResourceError(first.message, first.hint, more)


def versions_here() -> dict[str, str]:
    """Return the versions that the nodes are compared with."""
    return {"python": platform.python_version(), "ray": version("ray"), "torch": version("torch"), "rlexp": __version__}


def report_of(
    address: str,
    answers: Sequence[Mapping[str, Any]],
    here: Mapping[str, str],
    auth_mode: str = "disabled",
    hints: Mapping[str, str] = MappingProxyType({}),
) -> ClusterReport:
    """Return the report on the cluster at ``address`` from the answers of ``probe_process``; ``here``: versions.

    ``hints`` say what to do where a module or a server is missing, by its name.
    """
    names = _names(answers)
    there = [(answer, names[answer["id"]]) for answer in answers if not answer.get("has_left")]
    gone = tuple(f"node {names[answer['id']]} has left the cluster" for answer in answers if answer.get("has_left"))
    nodes = (_node_report(answer, name, here, hints) for answer, name in there)
    return ClusterReport(address, tuple(sorted(nodes, key=lambda report: not report.node.is_driver)), gone, auth_mode)


def _names(answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the address of each node, by its id; with a part of the id where several nodes share one."""
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
    node = Node(name, machine, answer["custom"], is_driver, is_driver or bool(facts.get("sees_out")))
    problems = (*_problems(name, answer, here, hints), *_unmet(name, answer.get("facts") or {}, hints))
    notices = tuple(_notices(name, facts, here))
    if not (machine.cpus or machine.gpus or is_driver):  # a head that no trial uses
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


def _unmet(name: str, facts: Mapping[str, Any], hints: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the servers that a node cannot reach, and the files that it cannot read."""
    for server, reason in facts.get("unreachable", {}).items():
        yield Problem("", f"node {name} cannot reach {server}: {reason}", hints.get(server, REACH_HINT))
    for path in facts.get("missing_files", ()):
        yield Problem("", f"node {name} cannot read {path}", FILE_HINT)


def _notices(name: str, facts: Mapping[str, Any], here: Mapping[str, str]) -> Iterator[str]:
    """Yield differences that do not matter by themselves."""
    for key in ("python", "torch"):
        there = facts.get(key)
        is_minor = key != "python" or _minor(there or "") == _minor(here["python"])
        if facts and there != here[key] and is_minor:
            yield f"node {name} has {key} {there or _UNKNOWN}, this machine has {here[key]}"


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]
