"""Ray clusters of several nodes on one machine, for tests.

As root each node is a set of namespaces: its own network, processes, host name, /dev/shm, /tmp/ray and disk. Elsewhere
``ray.cluster_utils.Cluster`` makes nodes that share all of this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.cluster import TestCluster
from tests.cluster.namespaces import NamespaceNodes, why_no_namespaces

REPOSITORY = Path(__file__).parents[2]
KIND = "RLEXP_TEST_NODES"
"""Environment variable: ``ray`` makes nodes without namespaces, also as root."""


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


class LocalNodes(TestCluster):
    """Nodes of a process of its own, which ends with the test's: each has a raylet and an object store on 127.0.0.1.

    They share the network, the disk and the processes of this machine, so tests of those are skipped.
    """

    has_own_disks = False

    def __init__(self, folder: Path, cpus: float, environment: Mapping[str, str]) -> None:
        super().__init__(folder, cpus, environment)
        self.address = ""
        self.disk.mkdir(exist_ok=True)
        self._number = 0
        with (folder / "nodes.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.nodes"],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def add(self) -> int:
        self._number += 1
        return self._number

    def start(self, node: int, cpus: float) -> None:
        self.address = self._ask("start", node, cpus)

    def wait_for_all(self) -> None:
        """Each start waited for its node."""

    def wrapped(self, node: int, command: Sequence[str], folder: Path) -> list[str]:
        return list(command)

    def kill_node(self, node: int) -> None:
        self._ask("kill", node)

    def ip(self, node: int) -> str:
        return "127.0.0.1"

    def path(self, node: int, path: Path) -> Path:
        return path

    def cut_link(self, node: int, cut_s: float) -> None:
        pytest.skip("without namespaces a node has no link of its own")

    def processes(self, node: int) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def end_nodes(self) -> None:
        left = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        for process in left:
            if process.is_running():
                process.kill()

    def _ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process of ray.cluster_utils.Cluster ended: see nodes.log"
        return str(json.loads(answer))


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
    make = NamespaceNodes if kind == "namespaces" else LocalNodes
    cluster: TestCluster = make(folder, cpus, environment_of(token))
    try:
        for number in range(1, count + 1):
            cluster.add()
            if with_ray:
                cluster.start(number, head_cpus if number == 1 and head_cpus is not None else cpus)
                # One by one: of two that started at once some were not registered within Ray's 180 s.
                cluster.wait_for_all()
        yield cluster
    finally:
        cluster.close()


def main() -> None:
    """Do what each line of standard input asks for, and end with it."""
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    started: dict[int, Any] = {}
    for line in sys.stdin:
        verb, node, *rest = json.loads(line)
        if verb == "start":
            memory = 300_000_000
            started[node] = cluster.add_node(num_cpus=rest[0], object_store_memory=memory, include_dashboard=False)
        else:
            cluster.remove_node(started.pop(node), allow_graceful=False)
        print(json.dumps(cluster.address), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
