"""The nodes of test clusters are separate machines to Ray, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.cluster.cluster import wait_until
from tests.cluster.nodes import nodes

pytestmark = pytest.mark.cluster_slow


def test_nodes_have_their_own_disk_host_name_and_processes(tmp_path: Path) -> None:
    with nodes(2, tmp_path, with_ray=False, own_disks=True) as cluster:
        written = cluster.run(2, ["sh", "-c", f"hostname > {cluster.disk}/name; echo $$"], tmp_path)
        assert written.returncode == 0
        assert int(written.stdout) < 100
        assert cluster.path(2, cluster.disk / "name").read_text() == "node2\n"
        assert not cluster.path(1, cluster.disk / "name").exists()
        assert list(cluster.disk.iterdir()) == []


def test_killed_node_is_silent(tmp_path: Path) -> None:
    with nodes(2, tmp_path, with_ray=False, own_disks=True) as cluster:
        left = cluster.open(2, ["sleep", "1000"], tmp_path)
        wait_until(lambda: len(cluster.processes(2)) > 1, 60, "the command in the node")
        cluster.kill_node(2)
        assert left.wait().returncode != 0
        assert cluster.processes(2) == []


def test_close_ends_every_process(tmp_path: Path) -> None:
    with nodes(2, tmp_path, with_ray=False, own_disks=True) as cluster:
        cluster.open(1, ["sleep", "1000"], tmp_path)
        processes = [process for node in (1, 2) for process in cluster.processes(node)]
    assert not [process for process in psutil.wait_procs(processes, timeout=60)[1] if process.is_running()]
    assert not (tmp_path / "disk" / "name").exists()
