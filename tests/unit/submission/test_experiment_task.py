"""What can be submitted, and what a task on a board makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlexp.board.client.run import described, task_on_board
from rlexp.board.messages.tasks import Task
from rlexp.errors import TrialError, UsageError
from rlexp.user_code.trusted_code import TrustedCode
from tests.submitted_tasks import EXPERIMENT, submitted_task

NOBODY = TrustedCode()


def test_text_on_the_board_makes_the_same_trial_again(tmp_path: Path) -> None:
    submitted = submitted_task(tmp_path, EXPERIMENT, "config.lr=0.25")
    again = task_on_board(submitted.task, NOBODY)
    assert again.trial == submitted.trial
    assert again.trial.experiment.config.seed == 3
    assert (submitted.task.name, submitted.task.num_seats) == ("cartpole", 3)
    assert "lr: 0.25" in submitted.task.file


def test_fresh_seed_is_part_of_the_text(tmp_path: Path) -> None:
    submitted = submitted_task(tmp_path, EXPERIMENT.replace("    seed: 3\n", ""))
    assert task_on_board(submitted.task, NOBODY).trial == submitted.trial


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_samples=2"], "here are 2"),
        (["config.replay_storage=shared_memory", "config.num_workers=1"], "shared_memory"),
        (["restore=results/a"], "restore is a folder of this machine"),
        (["storage=s3://bucket/a"], "storage would be written by the trainer"),
        (["config.env_config={api_token: hidden-4711}"], r"cartpole\.config\.env_config\.api_token is a secret"),
        (["config.env_config={server: 'http://me:hidden-4711@host'}"], r"env_config\.server is a secret"),
    ],
)
def test_trial_that_cannot_be_submitted_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        submitted_task(tmp_path, EXPERIMENT, *overrides)
    assert "hidden-4711" not in f"{error.value} {error.value.hint}"


def test_ppo_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="PPO over a board: it learns only from what its newest weights"):
        submitted_task(tmp_path, "p:\n  run: PPO\n  env: CartPole-v1\n")


def test_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="search section"):
        submitted_task(tmp_path, EXPERIMENT + "    lr: {grid_search: [0.1, 0.2]}\n  search: {}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [("env: os:system", "plays os:system"), ("env: CartPole-v1", "gives CartPole-v1 an env_config")],
)
def test_foreign_code_of_a_task_is_refused_unless_it_is_allowed(tmp_path: Path, line: str, message: str) -> None:
    given = "    evaluation_config: {env_config: {render_mode: human}}\n" if "CartPole" in line else ""
    text = EXPERIMENT.replace("env: CartPole-v1", line) + given
    task = submitted_task(tmp_path, text).task
    with pytest.raises(UsageError, match=message) as error:
        task_on_board(task, NOBODY)
    assert "--allow-env" in str(error.value.hint)
    env = line.removeprefix("env: ")
    assert task_on_board(task, TrustedCode(frozenset({env}))).trial.experiment.env == env


@pytest.mark.parametrize("line", ["restore: /home/anna/checkpoint_000001", "storage: s3://bucket/of-a-stranger"])
def test_places_of_a_strangers_text_are_refused(tmp_path: Path, line: str) -> None:
    task = submitted_task(tmp_path).task
    task = replace(
        task, file=f"{task.file}  {line}\n".replace("  restore: null\n", "").replace("  storage: null\n", "")
    )
    with pytest.raises(UsageError, match=f"has the key {line.partition(':')[0]}"):
        task_on_board(task, NOBODY)


def test_task_that_was_not_submitted_or_cannot_be_read_says_so(tmp_path: Path) -> None:
    task = submitted_task(tmp_path).task
    with pytest.raises(UsageError, match="was not submitted"):
        task_on_board(replace(task, file=""), NOBODY)
    with pytest.raises(TrialError, match="cannot read"):
        task_on_board(replace(task, file="a: {run: NOTHING}"), NOBODY)
    with pytest.raises(UsageError, match="task t-1 is not on the board"):
        described(None, "t-1")
    assert described(task, task.id) == Task(task.id, "cartpole", 3, {}, task.file)
