"""Commands that train on a Ray cluster of several machines, and leave it as it was.

A trial there that actors join over a board: its secrets, and its machine's loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.cluster import Command, TestCluster
from tests.cluster.nodes import nodes
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
from tests.lab.brokers import library_environment, redis_program, required

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

PASSWORD = "geheim-4711"
TRIAL = "Trainable"
"""In the title of the trial's process."""


class Board:
    """A Redis on the driver's node, and the keys of its trainer and of one actor."""

    def __init__(self, cluster: TestCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.url = f"redis://{cluster.ip(1)}:6380"
        words = ["board", "keys", "--out", str(folder / "keys"), "--actor", "alice"]
        subprocess.run([sys.executable, "-m", "rlexp", *words], check=True, timeout=BOUND_S, stdout=subprocess.DEVNULL)
        self.master, self.token = folder / "keys" / "master.key", folder / "keys" / "alice.token"

    @property
    def secrets(self) -> list[bytes]:
        """What may be in no file, environment or command line but the driver's and the actor's."""
        return [PASSWORD.encode(), self.master.read_bytes().strip()]

    def run(self, file: Path, out: Path) -> Command:
        """Train on the cluster, from its first node."""
        words = ["run", file, "--address", self.cluster.address, "--board", self.url, "--keys", f"@{self.master}"]
        return self.command(*words, "--out", out)

    def join(self) -> Command:
        """Play on the first node, without the cluster."""
        return self.command("join", self.url, "--once", "--token", f"@{self.token}")

    def train_submitted(self, out: Path) -> Command:
        """Wait on the first node for a task, and train it on the cluster."""
        words = ["--as", "trainer", "--address", self.cluster.address, "--out", out, "--keys", f"@{self.master}"]
        return self.command("join", self.url, "--once", *words)

    def command(self, *words: object) -> Command:
        """Start rlexp on the first node, with the board's password."""
        return open_rlexp(self.cluster, 1, *words, folder=self.folder, RLEXP_BOARD_PASSWORD=PASSWORD)


@contextmanager
def board_in(cluster: TestCluster, folder: Path) -> Iterator[Board]:
    """Have a board running that all nodes reach; skips the test where there is no Redis."""
    with required("Redis"):
        program = redis_program()
    options = ["--bind", cluster.ip(1), "--port", "6380", "--requirepass", PASSWORD, "--save", ""]
    server = cluster.open(1, [str(program), *options], folder, **library_environment(program))
    try:
        yield Board(cluster, folder)
    finally:
        server.end()


def secrets_of_processes(cluster: TestCluster, node: int, secrets: list[bytes]) -> list[str]:
    """Return the processes of a node that have a secret in their environment or command line."""
    found = []
    for process in cluster.processes(node):
        with suppress(psutil.Error):
            content = f"{process.cmdline()} {process.environ()}".encode()
            found += [process.name() for secret in secrets if secret in content]
    return found


def files_with(folders: list[Path], secrets: list[bytes]) -> list[Path]:
    """Return the files that have a secret."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(secret in path.read_bytes() for secret in secrets)]


def test_secrets_reach_a_trial_on_another_node_and_no_file(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with nodes(2, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster, board_in(cluster, tmp_path) as board:
        out = cluster.disk / "results"
        run = cluster.path(1, out / "small")
        file = apex(tmp_path, "timesteps_total: 6000", workers=0)
        command, actor = board.run(file, out), board.join()
        wait_for_rows(command, run, 1)
        assert node_with(cluster, 2, TRIAL) == 2
        secrets = board.secrets
        assert secrets_of_processes(cluster, 2, secrets) == []
        done, played = command.wait(), actor.wait()
        assert (done.returncode, played.returncode) == (0, 0), (done, played)
        assert rows(run)[-1]["info"]["board"]["num_refused"] == 0
        assert not [text for text in (done.stdout, done.stderr, played.stderr) if PASSWORD in text]
        logs = [cluster.path(node, Path("/tmp/ray")) for node in (1, 2)]
        disks = [cluster.path(node, cluster.disk) for node in (1, 2)]
        assert list(logs[1].glob("session_2*/logs/*.log"))
        assert files_with([*logs, *disks], secrets) == []
        assert cpus_free(cluster, tmp_path) == (2, 2)


def test_trial_goes_on_with_its_task_when_its_node_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with nodes(3, tmp_path, cpus=1, head_cpus=0, own_disks=True) as cluster, board_in(cluster, tmp_path) as board:
        out = cluster.disk / "results"
        run = cluster.path(1, out / "small")
        file = apex(tmp_path, "timesteps_total: 100000000", workers=0, iteration_s=0.5)
        command, actor = board.run(file, out), board.join()
        wait_for_checkpoint(command, run)
        wait_for_rows(command, run, 1)
        task, steps = task_of(run), rows(run)[-1]["timesteps_total"]
        lost = node_with(cluster, 3, TRIAL)
        cluster.kill_node(lost)
        before = len(rows(run))
        took_s = wait_for_rows(command, run, before + 2, "after the loss")
        print(f"two rows more after {took_s:.1f} s")
        assert node_with(cluster, 3, TRIAL) != lost
        assert rows(run)[-1]["timesteps_total"] > steps, "it began again"
        assert task_of(run) == task
        assert actor.process.poll() is None
        done = board.command("cancel", board.url, task).wait()
        assert done.returncode == 0, done.stderr
        assert command.wait().returncode == 0
        assert actor.wait().returncode == 0


def test_waiting_trainer_trains_a_submitted_task_on_the_cluster(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with nodes(2, tmp_path, cpus=1, head_cpus=0, own_disks=True) as cluster, board_in(cluster, tmp_path) as board:
        file, runs = apex(tmp_path, "timesteps_total: 6000", workers=0), cluster.disk / "runs"
        done = board.command("submit", file, "--board", board.url, "--no-wait").wait()
        assert done.returncode == 0, done.stderr
        task = done.stdout.split()[0]
        trainer, actor = board.train_submitted(runs), board.join()
        run = cluster.path(1, runs / "tasks" / task)
        wait_for_rows(trainer, run, 1)
        assert node_with(cluster, 2, TRIAL) == 2
        trained, played = trainer.wait(), actor.wait()
        assert (trained.returncode, played.returncode) == (0, 0), (trained, played)
        assert rows(run)[-1]["timesteps_total"] >= 6000
        listed = board.command("tasks", board.url, "--json").wait().stdout
        assert [(each["id"], each["status"]) for each in json.loads(listed)["tasks"]] == [(task, "ENDED")]


def task_of(run: Path) -> str:
    """Return the id of the task of a run with one trial."""
    (trial,) = json.loads((run / "run.json").read_text())["trials"]
    return str(trial["board_task"])


TINY = """
tiny:
  run: DQN
  env: {env}
  stop: {{timesteps_total: {steps}}}
  config:
    {{num_workers: 0, timesteps_per_iteration: 100, min_iter_time_s: 0, learning_starts: 50, hiddens: [16],
     buffer_size: 1000, train_batch_size: 16, model: {{fcnet_hiddens: [16]}}}}
"""
CORRIDOR = """
import gymnasium, numpy as np, socket
class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps % 10, np.float32), 1.0, self.steps == 20, False, {}
"""


def test_seven_cpus_on_three_nodes_of_four(tmp_path: Path) -> None:
    """No node has the seven CPUs, so trial and workers are on several; the head has none, so the trial is not there."""
    with nodes(4, tmp_path, cpus=4, head_cpus=0) as cluster:
        out = cluster.disk / "results"
        file = apex(tmp_path, "timesteps_total: 3000", checkpoint_freq=0)
        words = ["run", file, "--address", cluster.address, "--out", out, "--json"]
        command = open_rlexp(cluster, 1, *words, folder=tmp_path)
        run = cluster.path(1, out / "small")
        wait_for_rows(command, run, 1, "of the run")
        if cluster.has_own_disks:
            assert sum(count_processes(cluster, node, "gcs_server") for node in range(1, 5)) == 1
        done = command.wait()
        assert done.returncode == 0, done.stderr
        assert rows(run)[-1]["timesteps_total"] >= 3000
        verify(checkpoints(run)[-1])
        assert cpus_free(cluster, tmp_path) == (12, 12)
        if cluster.has_own_disks:
            assert not any(cluster.path(node, out).exists() for node in (2, 3, 4))


def test_ray_address_joins_and_local_does_not(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY.format(env="CartPole-v1", steps=100_000_000))
    with nodes(2, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        for name, words, node, servers in (("joined", [], 2, 1), ("own", ["--address", "local"], 1, 2)):
            words = ["run", str(file), "--out", str(tmp_path), "--name", name, *words]
            command = open_rlexp(cluster, 1, *words, folder=tmp_path, RAY_ADDRESS=cluster.address)
            wait_for_rows(command, tmp_path / name, 1, name)
            assert node_with(cluster, 2, "Trainable") == node
            assert sum(count_processes(cluster, each, "gcs_server") for each in (1, 2)) == servers
            command.signal(2)
            done = command.wait()
            assert done.returncode == 130, done.stderr
            assert checkpoints(tmp_path / name)
        assert cpus_free(cluster, tmp_path) == (2, 2)


def test_module_that_only_the_driver_has_reaches_every_node(tmp_path: Path) -> None:
    with nodes(3, tmp_path, cpus=2, head_cpus=0, own_disks=True) as cluster:
        code = cluster.path(1, cluster.disk) / "code"
        code.mkdir()
        (code / "corridor_env.py").write_text(CORRIDOR)
        apex(code, "timesteps_total: 2000", workers=3, env="corridor_env:Corridor")
        folder = cluster.disk / "code"
        done = cluster.rlexp(1, "run", "small.yaml", "--address", cluster.address, "--json", folder=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["run"]["status"] == "TERMINATED"
        assert rows(code / "results" / "small")[-1]["episode_len_mean"] == 20
        assert not cluster.path(2, folder).exists()
