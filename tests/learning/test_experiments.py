"""Every experiment of the repository reaches the reward it stops at, and its best checkpoint plays as well."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.config.load import load_plan

REPOSITORY = Path(__file__).parents[2]
EXPERIMENTS = sorted((REPOSITORY / "experiments").glob("*.yaml"))
TIMEOUT_S = 600


def rlexp(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlexp.cli", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_is_planned_without_a_notice(file: Path) -> None:
    plan = load_plan([file])
    assert not plan.notices
    assert all(trial.experiment.stop.keys() >= {"episode_reward_mean", "timesteps_total"} for trial in plan.trials)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_reaches_its_reward(file: Path, tmp_path: Path) -> None:
    done = rlexp("run", file, "--out", tmp_path, "--name", "run", "--seed", 0, "-q")
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run/run.json").read_text())
    for trial, planned in zip(run["trials"], load_plan([file]).trials, strict=True):
        wanted = planned.experiment.stop["episode_reward_mean"]
        assert trial["episode_reward_mean"] >= wanted, trial["name"]
        played = json.loads(rlexp("evaluate", tmp_path / "run" / trial["directory"], "--json").stdout)
        assert played["return_mean"] >= wanted, trial["name"]
