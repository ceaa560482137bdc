"""Every experiment of the repository reaches its goal, and its best checkpoint plays as well.

Those that play Atari need hours for that, so what is tested of them is that they begin. Sweeps are not among them.

The command line, as learning tests use it.

APEX learns a game from its pixels, the whole way that Atari games go.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlexp.config.load import load_plan

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600


def rlexp(*arguments: object, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root, where the modules of tests are found; return what became of it."""
    return subprocess.run(
        [sys.executable, "-m", "rlexp", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


FILES = sorted((REPOSITORY / "experiments").glob("*.yaml"))
EXPERIMENTS = [file for file in FILES if "\n  search:" not in file.read_text(encoding="utf-8")]
ATARI = [file for file in EXPERIMENTS if "NoFrameskip-v4" in file.read_text(encoding="utf-8")]
MINATAR = [file for file in EXPERIMENTS if file.stem.startswith("minatar-")]
QUICK = [file for file in EXPERIMENTS if file not in ATARI]
GOALS = {
    "acrobot-apex": -120,
    "acrobot-dqn": -120,
    "cartpole-dqn-50k": 250,
    "halfcheetah-ppo": 1400,
    "lunarlander-apex": 200,
    "lunarlander-dqn": 200,
    "minatar-dqn": 3,
    "minatar-pqn": 6,
    "minatar-rainbow": 2,
    "mountaincar-apex": -125,
    "mountaincar-dqn": -125,
    "pendulum-apex": -200,
    "pendulum-dqn": -200,
    "taxi-apex": 6,
    "taxi-dqn": 6,
}
"""Rewards to be reached by experiments that stop after a number of steps; others stop when they reach theirs."""


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_is_planned_without_a_notice(file: Path) -> None:
    plan = load_plan([file])
    assert not plan.notices
    stops = [trial.experiment.stop for trial in plan.trials]
    assert all("timesteps_total" in stop for stop in stops)
    assert file in ATARI or file.stem in GOALS or all("episode_reward_mean" in stop for stop in stops)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("file", QUICK, ids=lambda file: file.stem)
def test_reaches_its_goal(file: Path, tmp_path: Path) -> None:
    if file in MINATAR:
        pytest.importorskip("minatar")
    done = rlexp("run", file, "--out", tmp_path, "--name", "run", "--seed", 0, "-q")
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run/run.json").read_text())
    for trial, planned in zip(run["trials"], load_plan([file]).trials, strict=True):
        wanted = planned.experiment.stop.get("episode_reward_mean", GOALS.get(file.stem))
        assert trial["episode_reward_mean"] >= wanted, trial["name"]
        played = json.loads(rlexp("evaluate", tmp_path / "run" / trial["directory"], "--json").stdout)
        assert played["return_mean"] >= wanted, trial["name"]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("file", ATARI, ids=lambda file: file.stem)
def test_begins_on_any_machine(file: Path, tmp_path: Path) -> None:
    short = ("-o", "stop.timesteps_total=2000", "-o", "config.timesteps_per_iteration=1000")
    done = rlexp("run", file, "--fit", *short, "--out", tmp_path, "--name", "run", "-q")
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert all(trial["timesteps_total"] >= 2000 for trial in run["trials"])


@pytest.mark.slow
@pytest.mark.ray
def test_halfcheetah_runs_forward_within_100k_steps(tmp_path: Path) -> None:
    file = REPOSITORY / "experiments/halfcheetah-ppo.yaml"
    # The mean of the newest 20 episodes: 100 of them are all that there were.
    changes = ["-o", "stop.timesteps_total=100000", "-o", "config.metrics_smoothing_episodes=20"]
    done = rlexp("run", file, "--out", tmp_path, "--name", "run", *changes, "-q")
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "run/run.json").read_text())["trials"]
    assert trial["episode_reward_mean"] > 0


FILE = Path(__file__).with_name("catch-apex.yaml")
SECONDS = 240
"""On two cores, from the command to the end."""


@pytest.mark.slow
@pytest.mark.ray
def test_catch_is_learned_in_four_minutes(tmp_path: Path) -> None:
    wanted = load_plan([FILE]).trials[0].experiment.stop["episode_reward_mean"]
    started = time.monotonic()
    done = rlexp("run", FILE, "--out", tmp_path, "--name", "run", "--seed", 0, "-q", timeout_s=2 * SECONDS)
    assert done.returncode == 0, done.stderr
    trial = json.loads((tmp_path / "run/run.json").read_text())["trials"][0]
    assert trial["episode_reward_mean"] >= wanted
    played = json.loads(rlexp("evaluate", tmp_path / "run", "--json").stdout)
    assert played["return_mean"] >= wanted
    assert time.monotonic() - started <= SECONDS
