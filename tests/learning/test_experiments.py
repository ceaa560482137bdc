"""Every example that states a score reaches a goal near it, and its best checkpoint plays as well.

Examples that nobody has seen to learn yet need hours for that, so what is tested of them is that they begin.

The command line, as learning tests use it.

APEX learns a game from its pixels, the whole way that Atari games go.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.results import PICTURES, WITHOUT, Curve
from rlexp.config.examples import Example, examples
from rlexp.config.keys.env_ids import package_of
from rlexp.config.load import load_plan
from tests.lab.brokers import running_redis

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


EXPERIMENTS = [example for example in examples() if not example.is_sweep]
SWEEPS = [example for example in examples() if example.is_sweep]
BEGUN = [
    example
    for example in EXPERIMENTS
    if example.unseen is not None or " min" in example.facts["time"] or "NVIDIA" in example.facts["machine"]
]
"""Tests only begin them: nobody saw them learn, or by their heads it took minutes or a GPU."""
BOARD = "cartpole-board"
WHOLE = [example for example in EXPERIMENTS if example not in BEGUN and example.name != BOARD]
GOALS = {
    "acrobot-apex": -120,
    "acrobot-dqn": -120,
    "acrobot-ppo": -120,
    "cartpole-dqn-50k": 250,
    "cartpole-seeds": 400,
    "halfcheetah-ppo": 1400,
    "hopper-ppo": 1000,
    "lunarlander-apex": 200,
    "lunarlander-dqn": 200,
    "minatar-dqn": 3,
    "minatar-ppo": 6,
    "minatar-pqn": 6,
    "minatar-r2d2": 8,
    "minatar-rainbow": 4,
    "minigrid-ppo": 0.9,
    "multiwalker-ppo": -100,
    "pendulum-ddpg": -250,
    "pendulum-sac": -250,
    "pendulum-td3": -250,
    "mountaincar-apex": -140,
    "mountaincar-dqn": -125,
    "mountaincar-ppo": -125,
    "mountaincarcontinuous-ppo": 85,
    "own-env": 0.5,
    "pendulum-apex": -200,
    "pendulum-dqn": -200,
    "taxi-apex": 6,
    "taxi-dqn": 6,
}
"""Mean rewards to be reached by the trials of files that stop after a number of steps; others stop at theirs."""
SWEEP_GOALS = {"cartpole-ppo-sweep": 350, "cartpole-sweep": 400, "pendulum-pbt": -200}
"""What the best trial of a sweep must have reached at its end."""


def name_of(example: Example) -> str:
    return example.name


def require_package(example: Example) -> None:
    """Skip the test if a package of the example's envs is missing."""
    for env in example.envs:
        package = package_of(env)
        if package is not None:
            pytest.importorskip(package.module)


@pytest.mark.parametrize("example", EXPERIMENTS, ids=name_of)
def test_is_planned_without_a_notice(example: Example) -> None:
    plan = load_plan([example.path])
    assert not plan.notices
    stops = [trial.experiment.stop for trial in plan.trials]
    assert all("timesteps_total" in stop for stop in stops)
    assert example.unseen or example.name in GOALS or all("episode_reward_mean" in stop for stop in stops)


def test_each_has_a_curve_or_a_reason_why_not() -> None:
    curves = [curve for curves in PICTURES.values() for curve in curves if isinstance(curve, Curve)]
    drawn = {curve.file or curve.name for curve in curves}
    assert drawn | WITHOUT.keys() == {example.name for example in examples()}
    assert not drawn & WITHOUT.keys()
    assert len({curve.name for curve in curves}) == len(curves)  # else they would share their runs


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("example", WHOLE, ids=name_of)
def test_reaches_its_goal(example: Example, tmp_path: Path) -> None:
    require_package(example)
    done = rlexp("run", example.path, "--out", tmp_path, "--name", "run", "--seed", 0, "-q")
    assert done.returncode == 0, done.stderr
    trials = json.loads((tmp_path / "run/run.json").read_text())["trials"]
    [stop] = {planned.experiment.stop.get("episode_reward_mean") for planned in load_plan([example.path]).trials}
    wanted, judged = (GOALS[example.name], mean) if stop is None else (stop, min)
    assert judged(trial["episode_reward_mean"] for trial in trials) >= wanted
    played = (rlexp("evaluate", tmp_path / "run" / trial["directory"], "--json").stdout for trial in trials)
    assert judged(json.loads(each)["return_mean"] for each in played) >= wanted


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("example", SWEEPS, ids=name_of)
def test_sweep_finds_a_good_configuration(example: Example, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    done = rlexp("sweep", example.path, "--out", tmp_path, "--name", "sweep", "-q")
    assert done.returncode == 0, done.stderr
    trials = json.loads((tmp_path / "sweep/run.json").read_text())["trials"]
    assert max(trial["episode_reward_mean"] for trial in trials) >= SWEEP_GOALS[example.name]
    assert load_plan([tmp_path / "sweep/best.yaml"]).trials


@pytest.mark.slow
@pytest.mark.ray
def test_actors_that_join_a_board_play_for_its_experiment(tmp_path: Path) -> None:
    with running_redis() as server:
        words = ("run", REPOSITORY / f"experiments/{BOARD}.yaml", "--board", server.url)
        with ThreadPoolExecutor() as threads:
            trainer = threads.submit(rlexp, *words, "--out", tmp_path, "--name", "run", "--seed", 0, "-q")
            actors = rlexp("join", server.url, "--once", "--processes", 2)
            done = trainer.result()
    assert (done.returncode, actors.returncode) == (0, 0), done.stderr + actors.stderr
    (trial,) = json.loads((tmp_path / "run/run.json").read_text())["trials"]
    assert trial["episode_reward_mean"] >= 475


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("example", BEGUN, ids=name_of)
def test_begins_on_any_machine(example: Example, tmp_path: Path) -> None:
    require_package(example)
    short = ("-o", "stop.timesteps_total=2000", "-o", "config.timesteps_per_iteration=1000")
    done = rlexp("run", example.path, "--fit", *short, "--out", tmp_path, "--name", "run", "-q")
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


@pytest.mark.slow
@pytest.mark.ray
def test_what_init_writes_is_learned(tmp_path: Path) -> None:
    assert rlexp("init", tmp_path, "--env-class", "GridWalk").returncode == 0
    done = rlexp("run", tmp_path / "gridwalk-ppo.yaml", "--out", tmp_path, "--name", "run", "--seed", 0, "-q")
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "run/run.json").read_text())["trials"]
    assert trial["episode_reward_mean"] >= 0.9


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
