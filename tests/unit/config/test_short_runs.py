"""Short runs have a curve: iterations of a default length, which is meant for long ones, are shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.config.load import load_plan

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
