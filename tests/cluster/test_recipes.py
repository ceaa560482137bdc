"""The lines of docs/clusters.md do what the page says, as far as they run without a scheduler."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Command, TestCluster, wait_until
from tests.cluster.nodes import REPOSITORY, nodes
from tests.cluster.scene import (
    BOUND_S,
    apex,
    checkpoints,
    count_processes,
    cpus_free,
    node_with,
    open_rlexp,
    rows,
    verify,
    wait_for_checkpoint,
    wait_for_rows,
)
from tests.cluster.test_trial_nodes import longest_gap

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "clusters.md"
TRIAL = "Trainable"
"""In the title of its process: of our class between calls, of the one that Tune makes of it during one."""
WORKER = "ray::RolloutWorker"


def recipe(name: str) -> str:
    """Return the lines of the page under a recipe's mark."""
    found = re.search(rf"<!-- recipe: {name} -->\n```\w*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


def open_recipe(cluster: TestCluster, node: int, lines: str, folder: Path, **environ: str) -> Command:
    """Run lines of the page in a node; its own folder for temporary files is private already."""
    return cluster.open(node, ["bash", "-ec", lines], folder, HEAD=cluster.ip(1), **environ)


def run_recipe(cluster: TestCluster, node: int, lines: str, folder: Path) -> str:
    """Run lines of the page in a node to their end, and return what they print."""
    done = open_recipe(cluster, node, lines, folder).wait()
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_plain_machines(tmp_path: Path) -> None:
    apex(tmp_path, "timesteps_total: 2000", workers=5, name="pong-apex")
    with nodes(3, tmp_path, with_ray=False, own_disks=True) as cluster:
        run_recipe(cluster, 1, recipe("head"), tmp_path)
        for node in (2, 3):
            run_recipe(cluster, node, recipe("node"), tmp_path)
        printed = run_recipe(cluster, 1, recipe("plain"), tmp_path)
        assert all(cluster.ip(node) in printed for node in (1, 2, 3)), printed
        verify(checkpoints(tmp_path / "results" / "pong-apex")[-1])
        assert cpus_free(cluster, tmp_path) == (8, 8)


def test_slurm_with_stand_ins(tmp_path: Path) -> None:
    apex(tmp_path, "timesteps_total: 2000", workers=5, name="pong-apex")
    with nodes(3, tmp_path, with_ray=False, own_disks=True) as cluster:
        script = stand_ins(tmp_path, [cluster.ip(node) for node in (1, 2, 3)]) + recipe("slurm")
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_NNODES": "3"}
        job |= {"SLURM_CPUS_PER_TASK": "2", "SCRATCH": str(tmp_path)}
        tasks = [open_recipe(cluster, node, script, tmp_path, **job) for node in (1, 2, 3)]
        first = tasks[0].wait()
        assert first.returncode == 0, first.stdout + first.stderr
        assert rows(tmp_path / "results" / "pong-apex")[-1]["timesteps_total"] >= 2000


def stand_ins(folder: Path, hosts: list[str]) -> str:
    """Write ``scontrol`` and ``srun``, and return the line that makes a script use them.

    Every node runs the whole script, and srun only the task of its own node.
    """
    tools = folder / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text("#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts))
    (tools / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return f'PATH="{tools}:$PATH"\n'


def test_entrypoint_of_the_rayjob_runs_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    apex(tmp_path / "exp", "timesteps_total: 100000000", workers=3, iteration_s=0.5, name="pong-apex")
    run = tmp_path / "results" / "pong-apex"
    lines = recipe("rayjob").replace(" /", f" {tmp_path}/")
    with nodes(3, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        for attempt in (1, 2):
            before = len(rows(run))
            command = open_recipe(cluster, 1, f"exec bash -c '{lines}'", tmp_path)
            wait_for_rows(command, run, before + 1, f"of attempt {attempt}")
            wait_for_checkpoint(command, run)
            command.kill_tree()
            command.wait()
        assert not (tmp_path / "results" / "pong-apex-2").exists()


def test_spot_notice_of_the_trials_node(tmp_path: Path) -> None:
    file = apex(tmp_path, "timesteps_total: 100000000", workers=2, iteration_s=0.5, checkpoint_freq=0)
    with nodes(4, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        words = ["run", file, "--address", cluster.address, "--out", tmp_path / "results"]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = tmp_path / "results" / "small"
        wait_for_rows(command, run, 2)
        drained = node_with(cluster, 4, TRIAL)
        run_recipe(cluster, drained, recipe("notice"), tmp_path)
        wait_for_checkpoint(command, run)
        verify(checkpoints(run)[0])
        wait_for_rows(command, run, len(rows(run)) + 3, "after the notice")
        assert node_with(cluster, 4, TRIAL) != drained
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr


def test_spot_notice_of_a_workers_node(tmp_path: Path) -> None:
    file = apex(tmp_path, "timesteps_total: 100000000", workers=3, iteration_s=0.5, checkpoint_freq=0)
    with nodes(4, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        words = ["run", file, "--address", cluster.address, "--out", tmp_path / "results"]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = tmp_path / "results" / "small"
        wait_for_rows(command, run, 2)
        trial = node_with(cluster, 4, TRIAL)
        workers = [node for node in (2, 3, 4) if node != trial and count_processes(cluster, node, WORKER)]
        (free,) = {2, 3, 4} - {trial, *workers}
        run_recipe(cluster, workers[0], recipe("notice"), tmp_path)
        wait_until(lambda: not count_processes(cluster, workers[0], WORKER), BOUND_S, "workers that have ended")
        cluster.kill_node(workers[0])
        moved_s = wait_until(lambda: count_processes(cluster, free, WORKER), BOUND_S, "workers that have moved")
        wait_for_rows(command, run, len(rows(run)) + 3, "after the notice")
        print(f"notice to workers: back {moved_s:.1f} s after the node's end, gap {longest_gap(rows(run)):.1f} s")
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert rows(run)[-1]["info"]["num_worker_restarts"] == 0
        assert f"node {cluster.ip(workers[0])} ends soon" in done.stdout + done.stderr
