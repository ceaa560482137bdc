"""The run of a submitted task: what can be submitted, what is recorded, and what of a trainer is not believed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlexp.board.client.run import RunPlace, SubmittedTask, TaskRun, run_of_task, task_on_board
from rlexp.board.messages.basics import Task
from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.errors import CheckpointError, TrialError, UsageError
from rlexp.runs.checkpoint_contents import verify_checkpoint
from rlexp.runs.kept_checkpoints import find_checkpoint
from rlexp.runs.record import Status, read_run_record
from rlexp.runs.resuming import load_recorded_plan
from rlexp.terminal.displays import QuietDisplay
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.board import EXPERIMENT, KEY, ToldTrainer, result_row, submitted_task
from tests.lab.memory_board import MemoryBoard, MemoryServer

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
    assert task_on_board(task, NOBODY).task == Task(task.id, "cartpole", 3, {}, task.file)


BOARD = "redis://board:6379"
SUMMARY = TaskSummary("t", "cartpole", TaskStatus.ENDED, "", 3, (), None, 1.0, True, {}, -1)


class Silent(QuietDisplay):
    def __init__(self) -> None:
        self.ends: list[tuple[Status, str | None]] = []

    def on_trial_end(self, trial: object, status: Status, message: str | None) -> None:
        self.ends.append((status, message))

    def finish(self, run: object) -> None:
        pass


@pytest.fixture
def submitted(tmp_path: Path) -> SubmittedTask:
    return submitted_task(tmp_path)


def made(submitted: SubmittedTask, folder: Path, display: Silent | None = None) -> TaskRun:
    return TaskRun.create(
        submitted, RunPlace(folder / "out", None, False, ["rlexp", "submit"], BOARD), display or Silent()
    )


def rows_of(run: TaskRun) -> list[dict[str, Any]]:
    (path,) = run.directory.path.glob("*/result.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


def result(submitted: SubmittedTask, folder: Path, key: bytes = KEY, **metadata: Any) -> bytes:
    board = MemoryBoard(MemoryServer())
    board.submit(submitted.task)
    ToldTrainer(board, submitted.task).put_result(folder, 7, key, **metadata)
    content = board.get_blob(submitted.task.id, "result")
    assert content is not None
    return content


def test_run_is_recorded_like_one_of_this_machine(submitted: SubmittedTask, tmp_path: Path) -> None:
    display = Silent()
    with made(submitted, tmp_path, display) as run:
        run.begin()
        run.record(result_row(1))
        run.record(result_row(2))
        run.add_result(result(submitted, tmp_path, metrics=result_row(2)), KEY)
        run.finish(SUMMARY)
    path = tmp_path / "out" / "cartpole"
    record = read_run_record(path)
    (trial,) = record.trials
    assert (record.status, trial.status, trial.iterations, trial.episode_reward_mean) == ("TERMINATED",) * 2 + (2, 12.0)
    assert trial.board_task == submitted.task.id
    assert [row["trial_name"] for row in rows_of(run)] == [trial.name] * 2
    assert len((path / trial.directory / "progress.csv").read_text().splitlines()) == 3
    assert list((path / trial.directory).glob("events.out.tfevents.*"))
    assert find_checkpoint(path).name == "checkpoint_000007"
    kept, sent = (yaml.safe_load(text) for text in ((path / "resolved.yaml").read_text(), submitted.task.file))
    assert set(kept["cartpole"]) - set(sent["cartpole"]) == {"track"}
    assert {key: kept["cartpole"][key] for key in sent["cartpole"]} == sent["cartpole"]
    assert display.ends == [(Status.TERMINATED, None)]


def test_checkpoint_names_the_env_and_modules_that_were_submitted(submitted: SubmittedTask, tmp_path: Path) -> None:
    foreign: dict[str, Any] = {
        "experiment": {"env": "os:system"},
        "imports": ["antigravity"],
        "module_folders": ["/tmp"],
    }
    with made(submitted, tmp_path) as run:
        run.add_result(result(submitted, tmp_path, **foreign), KEY)
        checkpoint = find_checkpoint(run.directory.path)
    manifest = verify_checkpoint(checkpoint)
    assert manifest.sequence == 7
    assert manifest.metadata["experiment"]["env"] == "CartPole-v1"
    assert (manifest.metadata["imports"], manifest.metadata["module_folders"]) == (
        [],
        list(submitted.plan.modules.folders),
    )
    assert not list(checkpoint.parent.glob(".*"))


@pytest.mark.parametrize("damage", [b"other key", b"cut", b"metrics"])
def test_checkpoint_that_is_none_is_refused_and_nothing_is_left(
    submitted: SubmittedTask, tmp_path: Path, damage: bytes
) -> None:
    metadata: dict[str, Any] = {"metrics": {"training_iteration": -1}} if damage == b"metrics" else {}
    content = result(submitted, tmp_path, **metadata)
    with made(submitted, tmp_path) as run:
        before = sorted(path.name for path in run.directory.path.glob("*/*"))
        with pytest.raises(CheckpointError):
            run.add_result(content[:-40] if damage == b"cut" else content, b"x" if damage == b"other key" else KEY)
        assert sorted(path.name for path in run.directory.path.glob("*/*")) == before


def test_evaluation_goes_into_the_next_row_without_one_of_its_own(submitted: SubmittedTask, tmp_path: Path) -> None:
    ours, theirs = {"episode_reward_mean": 1.0}, {"episode_reward_mean": 2.0}
    with made(submitted, tmp_path) as run:
        run.add_evaluation(ours)
        run.record(result_row(1))
        run.record(result_row(2))
        run.add_evaluation(ours)
        run.record(result_row(3, evaluation=theirs))
        run.hold(result_row(4))
        run.add_evaluation(ours)
        run.finish(SUMMARY)
    assert [row.get("evaluation") for row in rows_of(run)] == [ours, None, theirs, ours]


def test_row_that_is_held_is_kept_before_the_next_one_and_where_a_run_is_left(
    submitted: SubmittedTask, tmp_path: Path
) -> None:
    with made(submitted, tmp_path) as run:
        run.hold(result_row(1))
        assert rows_of(run) == []
        assert not run.is_empty
        run.hold(result_row(2))
        run.record(result_row(3))
        run.hold(result_row(4))
        run.leave()
    assert [row["training_iteration"] for row in rows_of(run)] == [1, 2, 3, 4]


def test_failed_task_has_its_reason(submitted: SubmittedTask, tmp_path: Path) -> None:
    display = Silent()
    with made(submitted, tmp_path, display) as run:
        run.record(result_row(1))
        run.finish(TaskSummary("t", "n", TaskStatus.FAILED, "EnvError: broken", 3, (), None, 1.0, True, {}, -1))
    (trial,) = read_run_record(run.directory.path).trials
    assert trial.error is not None
    assert (trial.status, trial.error.summary) == (Status.ERROR, "EnvError: broken")
    assert display.ends == [(Status.ERROR, "EnvError: broken")]


def test_run_that_was_left_is_found_and_goes_on(submitted: SubmittedTask, tmp_path: Path) -> None:
    with made(submitted, tmp_path) as run:
        run.record(result_row(1))
        run.leave()
    place = RunPlace(tmp_path / "out", None, False, [], BOARD)
    path = run_of_task(place, submitted.task.id)
    assert path == run.directory.path
    assert read_run_record(path).status is Status.STOPPED
    assert run_of_task(place, "other") is None
    assert run_of_task(replace(place, board="redis://other:6379"), submitted.task.id) is None
    with TaskRun.reopen(path, submitted, Silent()) as again:
        assert again.last_row is not None
        assert again.last_row["training_iteration"] == 1
        again.record(result_row(2))
        again.finish(SUMMARY)
    assert [row["training_iteration"] for row in rows_of(again)] == [1, 2]
    assert read_run_record(path).status is Status.TERMINATED


def test_run_without_a_result_is_removed_when_it_is_left(submitted: SubmittedTask, tmp_path: Path) -> None:
    with made(submitted, tmp_path) as run:
        run.leave()
    assert not run.directory.path.exists()


def test_run_of_another_experiment_is_not_continued(submitted: SubmittedTask, tmp_path: Path) -> None:
    with made(submitted, tmp_path) as run:
        run.record(result_row(1))
        run.leave()
    (tmp_path / "b").mkdir()
    other = submitted_task(tmp_path / "b", "b: {run: DQN, env: CartPole-v1}")
    with pytest.raises(UsageError, match="is not the run of task"):
        TaskRun.reopen(run.directory.path, other, Silent())


def test_the_text_on_the_board_names_no_tracker(tmp_path: Path) -> None:
    submitted = submitted_task(tmp_path, EXPERIMENT, "track={wandb: {entity: our-team}}")
    assert submitted.trial.experiment.track.to == ("wandb",), "this command records it"
    assert "track" not in yaml.safe_load(submitted.task.file)["cartpole"]
    assert "our-team" not in submitted.task.file
    assert trackers_after_resume(submitted, tmp_path) == ("wandb",), "the run is this user's own"


def test_a_tracker_that_the_text_of_a_board_names_is_not_used(tmp_path: Path) -> None:
    task = submitted_task(tmp_path).task
    forged = replace(task, file=f"{task.file}  track: [wandb, mlflow]\n")
    assert yaml.safe_load(forged.file)["cartpole"]["track"] == ["wandb", "mlflow"]
    attached = task_on_board(forged, TrustedCode())
    assert attached.trial.experiment.track.to == ()
    assert trackers_after_resume(attached, tmp_path) == ()


def trackers_after_resume(submitted: SubmittedTask, folder: Path) -> tuple[str, ...]:
    """Return the trackers that ``rlexp resume`` starts for the run that is made for a task."""
    place = RunPlace(folder / "out", None, overwrite=False, command=["rlexp", "submit"])
    with TaskRun.create(submitted, place, QuietDisplay(io.StringIO())) as run:
        path = run.directory.path
    allowed = TrustedCode.of((), (), (), ["wandb://our-team/"])  # rlexp submit has remembered it
    (trial,) = load_recorded_plan(path, read_run_record(path), ["stop.timesteps_total=9000"], allowed).trials
    return trial.experiment.track.to
