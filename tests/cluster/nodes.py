"""Ray clusters of several nodes on one machine, for tests.

As root each node is a set of namespaces: its own network, processes, host name, /dev/shm, /tmp/ray and disk. Elsewhere
``ray.cluster_utils.Cluster`` makes nodes that share all of this. ``TestCluster.kind`` says which.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from tests.cluster.local_nodes import LocalNodes
from tests.cluster.namespaces import NamespaceNodes, why_no_namespaces

REPOSITORY = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 240.0
KIND = "RLEXP_TEST_NODES"
"""Environment variable: ``ray`` makes nodes without namespaces, also as root."""


class Nodes(Protocol):
    """How the nodes of a test cluster are made, reached and ended."""

    has_own_disks: bool
    address: str
    disk: Path

    def start(self, node: int, cpus: float | None, arguments: Sequence[str]) -> None: ...
    def add(self) -> int: ...
    def wrapped(self, node: int, command: Sequence[str], folder: Path) -> list[str]: ...
    def kill(self, node: int) -> None: ...
    def link(self, node: int, state: str) -> None: ...
    def ip(self, node: int) -> str: ...
    def path(self, node: int, path: Path) -> Path: ...
    def bytes(self, node: int) -> tuple[int, int]: ...
    def processes(self, node: int) -> list[psutil.Process]: ...
    def wait_for_all(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Command:
    """A command that runs in a node; ended by its owner through ``end``."""

    process: subprocess.Popen[str]
    has_wrapper: bool

    def signal(self, number: int) -> None:
        """Send a signal to the command itself, not to the program that entered the namespaces for it."""
        if not self.has_wrapper:
            self.process.send_signal(number)
            return
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)

    def wait(self, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Return how the command ended; after the time, end it and raise AssertionError with its output."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = self.process.communicate(timeout=30)
            raise AssertionError(f"not done after {timeout_s:g} s: {self.process.args!r}\n{out}\n{err}") from None
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def kill_tree(self) -> None:
        """Kill it and every process that it has started, as the end of a container does."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if not self.has_wrapper:
            self.process.kill()

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)


class TestCluster:
    """Some nodes with one Ray; node 1 is the head, and the driver of a test usually runs there."""

    __test__ = False

    def __init__(self, nodes: Nodes, kind: str, cpus: float, environment: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._cpus = cpus
        self._environment = environment
        self._commands: list[Command] = []
        self.kind = kind

    @property
    def address(self) -> str:
        """Host and port of the head."""
        return self._nodes.address

    @property
    def has_own_disks(self) -> bool:
        """Whether ``disk`` has other files on each node."""
        return self._nodes.has_own_disks

    @property
    def disk(self) -> Path:
        """A folder with other files on each node; other folders, such as ``tmp_path``, are shared."""
        return self._nodes.disk

    def start(self, node: int, cpus: float | None = None, *arguments: str) -> None:
        """Start Ray in a node that has none, with further arguments of ``ray start``."""
        self._nodes.start(node, self._cpus if cpus is None else cpus, arguments)
        self._nodes.wait_for_all()

    def add_node(self, cpus: float | None = None, *arguments: str, with_ray: bool = True) -> int:
        """Make another node, and return its number."""
        node = self._nodes.add()
        if with_ray:
            self.start(node, cpus, *arguments)
        return node

    def kill_node(self, node: int) -> None:
        """Cut a node from the network and kill every process in it, as when a machine loses its power."""
        self._nodes.kill(node)

    def cut_link(self, node: int, cut_s: float) -> None:
        """Cut a node from the network for a while; its processes go on."""
        self._nodes.link(node, "down")
        time.sleep(cut_s)
        self._nodes.link(node, "up")

    def open(self, node: int, command: Sequence[str], folder: Path, **environ: str) -> Command:
        """Start a command in a node, with ``folder`` as its current one."""
        wrapped = self._nodes.wrapped(node, command, folder)
        process = subprocess.Popen(
            wrapped,
            cwd=folder if len(wrapped) == len(command) else None,
            env={**self._environment, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.append(Command(process, has_wrapper=len(wrapped) != len(command)))
        return self._commands[-1]

    def run(
        self, node: int, command: Sequence[str], folder: Path, timeout_s: float = COMMAND_TIMEOUT_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node to its end."""
        return self.open(node, command, folder, **environ).wait(timeout_s)

    def rlexp(
        self, node: int, *words: str, folder: Path, timeout_s: float = COMMAND_TIMEOUT_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run rlexp in a node to its end."""
        return self.run(node, [sys.executable, "-m", "rlexp", *words], folder, timeout_s, **environ)

    def ip(self, node: int) -> str:
        """Return the address of a node."""
        return self._nodes.ip(node)

    def path(self, node: int, path: Path) -> Path:
        """Return where a file of a node's own disk can be read from here."""
        return self._nodes.path(node, path)

    def bytes(self, node: int) -> tuple[int, int]:
        """Return the bytes that a node has received and sent since it was made."""
        return self._nodes.bytes(node)

    def processes(self, node: int) -> list[psutil.Process]:
        """Return all processes of a node."""
        return self._nodes.processes(node)

    def close(self) -> None:
        """End every command, process and namespace."""
        for command in self._commands:
            command.end()
        self._nodes.close()
        for command in self._commands:
            command.process.communicate(timeout=30)


@cache
def kind_of_nodes() -> str:
    """Return how nodes are made here, with the reason where it is not by namespaces."""
    if os.environ.get(KIND) == "ray":
        return f"ray.cluster_utils.Cluster ({KIND}=ray)"
    reason = why_no_namespaces()
    return "namespaces" if reason is None else f"ray.cluster_utils.Cluster ({reason})"


def environment_of(token: str | None) -> dict[str, str]:
    """Return the variables for Ray and for commands in the nodes: ours, without what names another Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLEXP_", "TUNE_"))}
    auth = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    paths = {"PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}", "PYTHONPATH": str(REPOSITORY)}
    # Starting takes as long as it takes on a machine with other work, and idle workers would take its cores.
    patience = {"RAY_raylet_start_wait_time_s": "180", "RAY_gcs_rpc_server_connect_timeout_s": "60"}
    patience["RAY_prestart_worker_first_driver"] = "0"
    return (
        kept
        | auth
        | paths
        | patience
        | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    )


@contextmanager
def nodes(
    count: int,
    folder: Path,
    cpus: float = 4,
    head_cpus: float | None = None,
    token: str | None = None,
    with_ray: bool = True,
    own_disks: bool = False,
) -> Iterator[TestCluster]:
    """Make ``count`` nodes with ``cpus`` logical CPUs each; ``folder`` gets logs and the mount point of their disks.

    A test that needs ``own_disks`` is skipped with the reason where namespaces cannot be made.
    ``head_cpus`` counts for node 1; ``token`` is the one that Ray demands; ``with_ray`` False starts no Ray.
    """
    kind = kind_of_nodes()
    if own_disks and kind != "namespaces":
        pytest.skip(f"nodes are made by {kind}")
    environment = environment_of(token)
    made: Nodes = NamespaceNodes(folder, environment) if kind == "namespaces" else LocalNodes(folder, environment)
    cluster = TestCluster(made, kind, cpus, environment)
    try:
        for number in range(1, count + 1):
            made.add()
            if with_ray:
                made.start(number, head_cpus if number == 1 and head_cpus is not None else cpus, ())
                # One by one: of two that started at once some were not registered within Ray's 180 s.
                made.wait_for_all()
        yield cluster
    finally:
        cluster.close()
