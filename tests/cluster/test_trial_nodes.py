"""A trial on another machine than the command: its files, its errors, its end, and the loss of its machine.

The machine of some workers is lost: the others continue, replay keeps its rows, and workers come back. The head is
lost: the command ends with exit code 5, and a resume continues on another cluster.
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
    cpus_free,
    node_with,
    open_rlexp,
    rows,
    verify,
    wait_for_checkpoint,
    wait_for_rows,
)

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

TRIAL = "Trainable"
"""In the title of its process: of our class between calls, of the one that Tune makes of it during one."""
BACK_S = 15.0
"""Within this time after its link is back a trial trains."""
FAILING = """
import gymnasium
class Failing(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0
    def step(self, action):
        self.steps += 1
        if self.steps > 300:
            raise ValueError("the track is broken")
        return self.env.step(action)
"""


LEARNER = """
import socket, sys, time
from pathlib import Path
import psutil, torch
from rlexp.agents.torch.learner_process import LearnerProcess, add_up
from tests.unit.agents.torch.test_learners import learner_spec
rank, place = int(sys.argv[1]), Path(sys.argv[2])
assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
learner = LearnerProcess(rank, learner_spec())
if rank == 0:
    address, port = learner.open_store(are_together=False)
    place.with_name("written").write_text(f"{address} {port}")
    place.with_name("written").rename(place)
else:
    end = time.monotonic() + 100
    while not place.exists() and time.monotonic() < end:
        time.sleep(0.1)
    address, port = place.read_text().split()
learner.join(address, int(port), are_together=False)
print(*sorted({each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"}))
number = torch.ones(1)
add_up(number)
assert number == 2
"""
"""A learner on its node, without Ray."""


def test_learners_on_hosts_whose_name_is_loopback_find_each_other(tmp_path: Path) -> None:
    with nodes(2, tmp_path, with_ray=False, own_disks=True) as cluster:
        words = [sys.executable, "-c", LEARNER]
        commands = [cluster.open(rank + 1, [*words, str(rank), str(tmp_path / "store")], tmp_path) for rank in (0, 1)]
        for node, command in enumerate(commands, 1):
            done = command.wait()
            assert (done.returncode, done.stdout.split()) == (0, [cluster.ip(node)]), done.stderr


def test_stopped_run_on_own_disks_is_resumed_and_evaluated(tmp_path: Path) -> None:
    with nodes(3, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        out = cluster.disk / "results"
        file = apex(tmp_path, "timesteps_total: 100000000", workers=3, iteration_s=0.5, checkpoint_freq=0)
        words = ["run", file, "--address", cluster.address, "--out", out]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = cluster.path(1, out / "small")
        wait_for_rows(command, run, 2)
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        verify(checkpoints(run)[-1])
        steps = rows(run)[-1]["timesteps_total"]
        later = f"stop.timesteps_total={steps + 500}"
        resume = ["resume", str(out / "small"), "--address", cluster.address, "-o", later]
        done = cluster.rlexp(1, *resume, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert rows(run)[-1]["timesteps_total"] >= steps + 500
        done = cluster.rlexp(1, "evaluate", str(out / "small"), "--episodes", "2", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert cpus_free(cluster, tmp_path) == (4, 4)


def test_error_of_a_trial_on_own_disks_is_at_the_driver(tmp_path: Path) -> None:
    with nodes(3, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        (tmp_path / "failing_env.py").write_text(FAILING)
        file = apex(tmp_path, "timesteps_total: 100000000", workers=3, env="failing_env:Failing")
        out = cluster.disk / "results"
        done = cluster.rlexp(1, "run", str(file), "--address", cluster.address, "--out", str(out), folder=tmp_path)
        assert done.returncode == 1, done.stderr
        (error,) = cluster.path(1, out / "small").glob("0*/error*.txt")
        assert "the track is broken" in error.read_text()
        assert cpus_free(cluster, tmp_path) == (4, 4)


def test_trial_goes_on_when_the_link_of_its_node_is_back_and_no_other_has_room(tmp_path: Path) -> None:
    with nodes(3, tmp_path, cpus=4, head_cpus=0, own_disks=True) as cluster:
        file = apex(tmp_path, "timesteps_total: 100000000", workers=6, iteration_s=0.5)
        words = ["run", file, "--address", cluster.address, "--out", tmp_path / "results"]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = tmp_path / "results" / "small"
        wait_for_checkpoint(command, run)
        wait_for_rows(command, run, 1)
        steps = rows(run)[-1]["timesteps_total"]
        away = node_with(cluster, 3, TRIAL)
        cluster.cut_link(away, 20.0)
        # The first of them may have been on their way.
        took_s = wait_for_rows(command, run, len(rows(run)) + 4, "after the link is back")
        print(f"four rows {took_s:.1f} s after the link is back")
        assert took_s < BACK_S
        assert rows(run)[-1]["timesteps_total"] > steps, "it began again"
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert f"waits for its node {cluster.ip(away)}, the others have no room: 3 of its 6" in done.stderr
        assert cpus_free(cluster, tmp_path) == (8, 8)


@pytest.mark.parametrize("disk", ["own", "shared"])
def test_trial_continues_elsewhere_when_its_node_is_lost(disk: str, tmp_path: Path) -> None:
    with nodes(4, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        out = cluster.disk / "results" if disk == "own" else tmp_path / "results"
        run = cluster.path(1, out / "small") if disk == "own" else out / "small"
        file = apex(tmp_path, "timesteps_total: 100000000", workers=2, iteration_s=0.5)
        command = open_rlexp(cluster, 1, "run", file, "--address", cluster.address, "--out", out, folder=tmp_path)
        wait_for_checkpoint(command, run)
        wait_for_rows(command, run, 1)
        steps = rows(run)[-1]["timesteps_total"]
        lost = node_with(cluster, 4, TRIAL)
        cluster.kill_node(lost)
        before = len(rows(run))
        took_s = wait_for_rows(command, run, before + 2, "after the loss")
        print(f"bar 9, {disk} disk: two rows more after {took_s:.1f} s")
        assert node_with(cluster, 4, TRIAL) != lost
        assert rows(run)[-1]["timesteps_total"] > steps, "it began again"
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert cluster.ip(lost) in done.stdout + done.stderr, "a note names the node"
        assert cpus_free(cluster, tmp_path) == (4, 4)


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
GATHERER = "ray::Gatherer"
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
        num_lost = count_processes(cluster, lost, WORKER)  # three, or the one for which the others have no room
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
        wait_until(lambda: count_processes(cluster, added, WORKER) == num_lost, BOUND_S, "all workers in the new node")
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
