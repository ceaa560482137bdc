"""A cluster of one node is looked at, trained on, and left as it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlexp.processes.family import SESSION

TIMEOUT_S = 150
RAYS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", SESSION)
"""Variables of the tests' own Ray."""
EXPERIMENT = """
a:
  run: APEX
  env: my_own_env:Mine
  stop: {training_iteration: 2}
  config: {num_workers: 2, min_iter_time_s: 0.2, num_cpus_for_driver: 1, learning_starts: 100, train_batch_size: 32}
"""
ENV = """
import gymnasium as gym


class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, self.np_random.random() < 0.1, False, {}
"""

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(4 * TIMEOUT_S)]


def environment() -> dict[str, str]:
    """Return the environment of a user, whose nodes find rlexp where this process does."""
    own = {name: value for name, value in os.environ.items() if name not in RAYS}
    return own | {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), own.get("PYTHONPATH"))))}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head with four logical CPUs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("r")
    open_environment = environment() | {"RAY_AUTH_MODE": "disabled"}  # also where this user has a token
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    words += ["--port", str(port), "--num-cpus", "4", "--include-dashboard", "false", "--temp-dir", str(folder)]
    process = subprocess.Popen(words, env=open_environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        assert any("Ray runtime started" in line for line in process.stdout)
        yield f"127.0.0.1:{port}"
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        for each in family:
            if each.is_running():
                each.kill()
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()


def rlexp(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlexp", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_doctor_shows_the_node(head: str, tmp_path: Path) -> None:
    done = rlexp(tmp_path, "doctor", "--address", head)
    assert done.returncode == 0, done.stderr
    assert "(here)" in done.stdout


def test_run_trains_on_the_cluster_and_leaves_it(head: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    (tmp_path / "my_own_env.py").write_text(ENV)
    done = rlexp(tmp_path, "run", "a.yaml", "--address", head)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "joining the cluster" in done.stdout + done.stderr
    assert list((tmp_path / "results" / "a").glob("*/checkpoint_*"))
    again = rlexp(tmp_path, "doctor", "--address", head)
    assert again.returncode == 0, again.stderr


def test_run_that_is_too_large_creates_nothing(head: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(EXPERIMENT.replace("my_own_env:Mine", "CartPole-v1"))
    done = rlexp(tmp_path, "run", "a.yaml", "-o", "config.num_workers=9", "--address", head)
    assert done.returncode == 4
    assert "the cluster has 4" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]
