"""The machine of some workers is lost: the others continue, replay keeps its rows, and workers come back.

The head of the cluster is lost: the command ends with exit code 5, and a resume continues on another cluster.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import TestCluster, wait_until
from tests.cluster.nodes import nodes
from tests.cluster.scene import (
    BOUND_S,
    apex,
    checkpoints,
    command_line,
    count_processes,
    node_with,
    open_rlexp,
    rows,
    verify,
    wait_for_checkpoint,
    wait_for_rows,
)

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

GONE_AFTER_S = 60.0


def test_run_ends_with_exit_code_5_and_is_resumed_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "results"
    file = apex(tmp_path, "timesteps_total: 100000000", workers=3, iteration_s=0.5)
    with nodes(3, tmp_path, cpus=2, own_disks=True) as cluster:
        words = ["run", file, "--address", cluster.address, "--out", out]
        command = open_rlexp(cluster, 2, *words, folder=tmp_path)
        wait_for_checkpoint(command, out / "small")
        cluster.kill_node(1)
        killed_s = time.monotonic()
        done = command.wait()
        assert done.returncode == 5, done.stderr
        wait_until(lambda: not processes_of_trials(cluster), BOUND_S, "the end of the trial's processes")
        took_s = time.monotonic() - killed_s
        print(f"every process of the trial has ended {took_s:.0f} s after the head")
        assert took_s < GONE_AFTER_S
        assert "rlexp resume" in done.stderr
        assert '"status": "ERROR"' in (out / "small" / "run.json").read_text()
        verify(checkpoints(out / "small")[-1])
    with nodes(2, tmp_path, cpus=2, own_disks=True) as cluster:
        before = len(rows(out / "small"))
        command = open_rlexp(cluster, 1, "resume", out / "small", "--address", cluster.address, folder=tmp_path)
        wait_for_rows(command, out / "small", before + 1, "after the resume")
        command.signal(signal.SIGINT)
        assert command.wait().returncode == 130


def processes_of_trials(cluster: TestCluster) -> list[str]:
    """Return the titles of what runs in the nodes that are left, without Ray's own processes and idle ones."""
    titles = [command_line(process) for node in (2, 3) for process in cluster.processes(node)]
    return [title for title in titles if re.match(r"ray::(?!IDLE|\w+Agent)", title)]


WORKER = "ray::RolloutWorker"
TRIAL, GATHERER = "Trainable", "ray::Gatherer"
ROWS_AFTER = 8
"""Rows, each of at least a second, that are written before Ray knows that the node is dead, and as many afterwards."""
ALIVE = """
import ray
ray.init(address="{address}", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


@pytest.mark.parametrize("storage", ["local", "actors"])
def test_workers_come_back_with_a_node(storage: str, tmp_path: Path) -> None:
    with nodes(3, tmp_path, cpus=3, own_disks=True) as cluster:
        file = apex(tmp_path, "timesteps_total: 100000000", workers=6, iteration_s=1, checkpoint_freq=0)
        words = ["run", file, "--address", cluster.address, "--out", tmp_path, "-o", f"config.replay_storage={storage}"]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = tmp_path / "small"
        wait_for_rows(command, run, 3)
        lost = node_of_workers_only(cluster)
        with_workers = [node for node in (1, 2, 3) if count_processes(cluster, node, WORKER)]
        gatherers = [count_processes(cluster, node, GATHERER) for node in with_workers]
        assert gatherers == [int(storage == "actors")] * len(with_workers)
        fill = rows(run)[-1]["info"]["replay_fill"]
        cluster.kill_node(lost)
        wait_for_rows(command, run, len(rows(run)) + ROWS_AFTER, "without the node")
        known_s = wait_until(lambda: num_alive(cluster, tmp_path) == 2, BOUND_S, "Ray to declare the node dead")
        wait_for_rows(command, run, len(rows(run)) + ROWS_AFTER, "without the node, which is known to be dead")
        assert rows(run)[-1]["info"]["replay_fill"] >= fill, "rows of replay are lost"
        added = cluster.add_node()
        took_s = wait_until(lambda: count_processes(cluster, added, WORKER), BOUND_S, "workers in the new node")
        wait_until(lambda: count_processes(cluster, added, WORKER) == 3, BOUND_S, "all workers in the new node")
        wait_for_rows(command, run, len(rows(run)) + ROWS_AFTER, "with the new node, by which each has delivered")
        gap_s = longest_gap(rows(run))
        print(f"bar 8, {storage}: dead {known_s:.0f} s later, back after {took_s:.1f} s, longest gap {gap_s:.1f} s")
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert rows(run)[-1]["info"]["num_worker_restarts"] == 0
        notes = [line for line in done.stderr.splitlines() if cluster.ip(lost) in line]
        print(*notes, sep="\n")
        assert len(notes) == 2, "one when it is lost, and one when its workers are back"


def num_alive(cluster: TestCluster, folder: Path) -> int:
    """Return how many nodes Ray believes to be alive."""
    done = cluster.run(1, [sys.executable, "-c", ALIVE.format(address=cluster.address)], folder)
    assert done.returncode == 0, done.stderr
    return int(next(line for line in done.stdout.splitlines() if line.isdigit()))  # Ray may print of dead nodes, too


def node_of_workers_only(cluster: TestCluster) -> int:
    """Return a node that has workers and neither the trial nor the head."""
    trial = node_with(cluster, 3, TRIAL)
    return next(node for node in (3, 2) if node != trial and count_processes(cluster, node, WORKER))


def longest_gap(written: list[dict[str, Any]]) -> float:
    """Return the most seconds between two rows."""
    return max(float(later["time_total_s"] - earlier["time_total_s"]) for earlier, later in pairwise(written))
