"""The examples are found, their heads read, the wheel has them; and runs that end before they learn are named."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest

from rlexp.config import examples as module
from rlexp.config.examples import MEASURED, UNSEEN, Example, example_of, examples, examples_folder
from rlexp.config.keys.env_ids import package_of
from rlexp.config.load import load_plan

ROOT = Path(__file__).parents[3]
FILE = """\
# PPO on CartPole, in one process.
# With the tuned values of somebody.
# score: 475 (mean return of 100 training episodes,
#   confirmed by 20 greedy ones)
# steps: 66,000 to 83,000
# time: 4.4 s
# machine: two cores
# with: own_env.py other.py
# A last remark: it is no fact.

own:
  run: PPO
  env:
    grid_search: [A-v1, 'B/C-v0']
  config: {}
second:
  run: APEX    # after it
  env: own_env:Walk
  search: {}
"""


@pytest.fixture
def read(tmp_path: Path) -> Example:
    path = tmp_path / "own-ppo.yaml"
    path.write_text(FILE)
    return example_of(path)


def test_head_is_read(read: Example) -> None:
    assert read.name == "own-ppo"
    assert read.task == "PPO on CartPole, in one process"
    assert read.facts["score"] == "475 (mean return of 100 training episodes, confirmed by 20 greedy ones)"
    assert [read.facts[key] for key in ("steps", "time", "machine")] == ["66,000 to 83,000", "4.4 s", "two cores"]
    assert not {"seeds", "date", UNSEEN} & read.facts.keys()
    assert read.unseen is None
    assert [path.name for path in read.files] == ["own-ppo.yaml", "own_env.py", "other.py"]


def test_experiments_are_read(read: Example) -> None:
    assert (read.agent, read.env, read.is_sweep) == ("PPO, APEX", "A-v1, B/C-v0, own_env:Walk", True)


def test_file_without_a_head_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text("bare: {run: DQN}\n# score: 3\n")
    assert (example_of(path).task, dict(example_of(path).facts)) == ("", {})


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_text_search_finds_what_the_plan_has(example: Example) -> None:
    plan = load_plan([example.path])
    assert {trial.experiment.run for trial in plan.everything} == {*example.agents}
    assert bool(plan.sweeps) == example.is_sweep
    assert {str(trial.experiment.env) for trial in plan.everything} == {*example.envs}


def test_wheel_has_the_examples_where_they_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert examples_folder() == ROOT / "experiments"
    installed = tmp_path / built["force-include"]["experiments"]
    installed.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "rlexp/config/examples.py"))
    assert examples_folder() == installed


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_head_says_what_was_seen_or_that_nothing_was(example: Example) -> None:
    measured = {fact for fact in MEASURED if fact in example.facts}
    assert measured == ({*MEASURED} if example.unseen is None else set())
    assert 10 < len(example.task) <= 78
    assert all(path.is_file() for path in example.files)
    if example.unseen is None:
        assert re.match(r"-?\d", example.facts["score"])
        assert re.match(r"[\d,]*\d", example.facts["steps"])
        assert re.match(r"[\d.]+( to [\d.]+)? (s|min|h)\b|not recorded", example.facts["time"])
        assert re.match(r"\d", example.facts["seeds"])
        assert datetime.date.fromisoformat(example.facts["date"])


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_files_name_their_modules_and_packages(example: Example) -> None:
    text = example.path.read_text()
    experiments = [trial.experiment for trial in load_plan([example.path]).everything]
    modules = {f"{name}.py" for experiment in experiments for name in experiment.named_modules}
    own = {name for name in modules if example.path.with_name(name).is_file()}
    assert own == {path.name for path in example.files[1:]}
    for experiment in experiments:
        package = package_of(experiment.env)
        assert package is None or f"pip install '{package.requirement}'" in text


APEX = "a: {run: APEX, env: CartPole-v1, stop: {timesteps_total: 20000}, config: {num_workers: 2}}\n"


def length(path: Path, text: str, *overrides: str) -> tuple[int | None, float | None]:
    path.write_text(text, encoding="utf-8")
    config = load_plan([path], overrides).trials[0].experiment.config
    return config.timesteps_per_iteration, config.min_iter_time_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "experiment.yaml"


@pytest.mark.parametrize(("total", "steps"), [(20_000, 1000), (200_000, 10_000), (1500, 1000)])
def test_a_short_run_of_apex_has_about_twenty_iterations(file: Path, total: int, steps: int) -> None:
    assert length(file, APEX, f"stop.timesteps_total={total}") == (steps, 0.0)


@pytest.mark.parametrize("key", ["stop.time_total_s", "time_budget_s"])
def test_a_run_of_a_short_time_has_rows_by_time(file: Path, key: str) -> None:
    assert length(file, APEX.replace("timesteps_total: 20000", ""), f"{key}=100") == (0, 5.0)


def test_a_notice_says_so_and_the_resolved_file_has_it(file: Path) -> None:
    file.write_text(APEX, encoding="utf-8")
    shorter, without_learning = load_plan([file]).notices
    assert "config.timesteps_per_iteration: 1000" in shorter.message
    assert "the defaults, 25000 and 30" in shorter.message
    assert without_learning.message == (
        "a learns nothing: the learner starts after 50,000 env steps (config.learning_starts),"
        " but stop.timesteps_total is 20,000"
    )


@pytest.mark.parametrize(
    "override",
    [
        "config.min_iter_time_s=30",
        "config.timesteps_per_iteration=25000",
        "checkpoint_freq=10",
        "config.evaluation_interval=2",
        "stop.training_iteration=3",
        "stop.timesteps_total=500000",
        "stop.timesteps_total=1000",
    ],
)
def test_a_given_length_a_count_of_iterations_and_a_long_run_change_nothing(file: Path, override: str) -> None:
    assert length(file, APEX, override) == (25_000, 30.0)


def test_a_file_of_an_old_release_keeps_the_defaults_of_rllib(file: Path) -> None:
    old = APEX.replace("config: {", "config: {rollout_fragment_length: 50, ")
    assert length(file, old) == (25_000, 30.0)


def test_dqn_has_rows_enough(file: Path) -> None:
    assert length(file, APEX, "run=DQN", "stop.timesteps_total=2000") == (1000, 1.0)
