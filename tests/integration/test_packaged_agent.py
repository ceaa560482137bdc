"""An agent that a package brings and a torso of the user's own, in real processes: run, evaluate, resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.agent_packages import install_agent

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]
TORSO = '''
from torch import nn


class Torso(nn.Sequential):
    """One layer, which is found in the folder of the experiment's file."""

    def __init__(self, observation_space, width):
        super().__init__(nn.Linear(observation_space.shape[0], width), nn.ReLU())
        self.num_features = width
'''
FILE = """
own:
  run: TwiceDQN
  env: CartPole-v1
  stop: {training_iteration: 2}
  config:
    reward_factor: 4.0
    num_workers: 1
    num_cpus_per_worker: 0.5
    model: {custom_model: {own_torso_of_test: {width: 12}}}
    timesteps_per_iteration: 100
    min_iter_time_s: 0
    learning_starts: 50
    buffer_size: 1000
    train_batch_size: 16
    hiddens: [8]
    seed: 3
""".replace("own_torso_of_test", "'own_torso_of_test:Torso'")


def rlexp(folder: Path, site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlexp", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(site)))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.slow
def test_agent_and_torso_of_the_users_own_run_and_resume(tmp_path: Path) -> None:
    site, folder = install_agent(tmp_path / "site"), tmp_path / "work"
    folder.mkdir()
    (folder / "own_torso_of_test.py").write_text(TORSO)
    (folder / "own.yaml").write_text(FILE)
    run = rlexp(folder, site, "run", "own.yaml", "--out", "results", "--quiet")
    assert run.returncode == 0, run.stdout + run.stderr
    evaluated = rlexp(folder, site, "evaluate", "results/own", "--episodes", "2", "--json")
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    resumed = rlexp(folder, site, "resume", "results/own", "-o", "stop.training_iteration=3", "--quiet")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    (result,) = (folder / "results/own").glob("*/result.json")
    rows = [json.loads(line) for line in result.read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert {row["info"]["reward_factor"] for row in rows} == {4.0}
    assert rows[2]["info"]["num_updates"] > rows[1]["info"]["num_updates"] > 0
