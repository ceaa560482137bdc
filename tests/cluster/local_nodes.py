"""Nodes without namespaces: ``ray.cluster_utils.Cluster`` in a process of its own, which ends with the test's process.

They share the network, the disk and the processes of this machine, so tests of those are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.cluster import TestCluster


class LocalNodes(TestCluster):
    """Nodes on 127.0.0.1 with their own raylets and object stores."""

    has_own_disks = False

    def __init__(self, folder: Path, cpus: float, environment: Mapping[str, str]) -> None:
        super().__init__(folder, cpus, environment)
        self.address = ""
        self.disk.mkdir(exist_ok=True)
        self._number = 0
        with (folder / "nodes.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.local_nodes"],
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
