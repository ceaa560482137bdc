"""Commands that train on a Ray cluster of several machines, and leave it as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.cluster.scene import (
    apex,
    checkpoints,
    count_processes,
    cpus_free,
    node_with,
    open_rlexp,
    rows,
    verify,
    wait_for_rows,
)

pytestmark = pytest.mark.timeout(600)

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


@pytest.mark.cluster_slow
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


@pytest.mark.cluster_slow
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


@pytest.mark.cluster_slow
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
