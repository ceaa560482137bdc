"""The head of the cluster is lost: the command ends with exit code 5, and a resume continues on another cluster."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.nodes import TestCluster, nodes
from tests.cluster.scene import (
    BOUND_S,
    apex,
    checkpoints,
    command_line,
    open_rlexp,
    rows,
    verify,
    wait_for_checkpoint,
    wait_for_rows,
)
from tests.cluster.waiting import wait_until

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
