"""Waiting for a task: its end, boards that are away, interruptions, evaluations meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.client import submit
from rlexp.board.client.run import RunPlace, SubmittedTask, TaskRun
from rlexp.board.client.submit import Submission, SubmitOptions, Submitted, Submitter, TaskPlace
from rlexp.board.client.watch import TaskWatch
from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import Backoff, BoardLostError
from rlexp.board.messages.credentials import ActorKeys, MasterKey, TrainerKeys, password_keys, signed_task
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.errors import UsageError
from rlexp.rollout.evaluation import never
from rlexp.runs.record import Status, read_run_record
from rlexp.terminal.displays import QuietDisplay
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.board import KEY, ToldTrainer, result_row, submitted_task
from tests.lab.memory_board import MemoryBoard, MemoryServer

MASTER = MasterKey(b"m" * 32)


class Recorded(QuietDisplay):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tasks: list[TaskSummary] = []
        self.left: list[str] = []
        self.submitted: list[str] = []
        self.evaluations: list[int] = []
        self.num_results = 0

    def on_note(self, trial: object, text: str) -> None:
        self.notes.append(text)

    def on_task(self, task: TaskSummary) -> None:
        self.tasks.append(task)

    def on_result(self, trial: object, row: Mapping[str, Any]) -> None:
        self.num_results += 1

    def on_leave(self, task_id: str, board: str) -> None:
        self.left.append(task_id)

    def on_submitted(self, task_id: str) -> None:
        self.submitted.append(task_id)

    def on_evaluation(self, version: int, figures: Mapping[str, Any]) -> None:
        self.evaluations.append(version)

    def finish(self, run: object) -> None:
        pass


class AwayBoard(MemoryBoard):
    """Cannot be reached for the next ``away`` calls."""

    away = 0

    def tasks(self) -> list[TaskSummary]:
        self.away -= 1
        if self.away >= 0:
            raise BoardLostError("the board cannot be reached")
        return super().tasks()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "LOOK_S", 0.001)
    monkeypatch.setattr(Backoff, "failed", lambda self: 0.0)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.display = folder, Recorded()
        self.submitted: SubmittedTask = submitted_task(folder)
        self.board = AwayBoard(MemoryServer())
        self.board.submit(self.submitted.task)
        self.trainer = ToldTrainer(self.board, self.submitted.task)
        place = RunPlace(folder / "out", None, False, [])
        self.run = TaskRun.create(self.submitted, place, self.display)
        watch = TaskWatch(self.board, self.submitted.task, None, lambda: 0.0)
        self.submission = Submission(
            TaskPlace(self.board, TrainerKeys(KEY, KEY), "redis://host"),
            watch,
            self.run,
            self.display,
            sleep=lambda seconds: None,
        )

    def wait(self, should_stop: Callable[[], bool] = never) -> TaskSummary | None:
        with self.run:
            return self.submission.wait(should_stop)

    def end(self, should_stop: Callable[[], bool] = never) -> TaskSummary:
        summary = self.wait(should_stop)
        assert summary is not None
        return summary

    def status(self) -> Status:
        return read_run_record(self.run.directory.path).status


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_task_that_ends_leaves_its_rows_and_checkpoint(scene: Scene, tmp_path: Path) -> None:
    scene.trainer.put_rows(result_row(1), result_row(2))
    scene.trainer.put_result(tmp_path, 2)
    scene.trainer.finish(reason="timesteps_total has reached 2,000")
    summary = scene.end()
    assert summary.status is TaskStatus.ENDED
    (trial,) = read_run_record(scene.run.directory.path).trials
    assert (trial.status, trial.iterations, trial.reason) == (Status.TERMINATED, 2, "timesteps_total has reached 2,000")
    assert trial.best_checkpoint == f"{trial.directory}/checkpoint_000002"


def test_task_that_ends_without_its_checkpoint_has_failed(scene: Scene) -> None:
    scene.trainer.finish()
    summary = scene.end()
    assert (summary.status, summary.reason) == (TaskStatus.FAILED, "the trainer has left no checkpoint on the board")
    assert scene.status() is Status.ERROR


@pytest.mark.parametrize(
    ("status", "recorded"), [(TaskStatus.FAILED, Status.ERROR), (TaskStatus.CANCELLED, Status.STOPPED)]
)
def test_task_that_fails_or_is_cancelled_says_why(scene: Scene, status: TaskStatus, recorded: Status) -> None:
    scene.trainer.put_rows(result_row(1))
    scene.trainer.finish(status, "because")
    summary = scene.end()
    assert (summary.status, summary.reason, scene.status()) == (status, "because", recorded)


def test_trainer_of_a_cancelled_task_has_time_to_save(scene: Scene, tmp_path: Path) -> None:
    scene.trainer.put_rows(result_row(1))
    assert scene.board.cancel(scene.submitted.task.id, "enough")

    def save_at_third_look() -> bool:
        if len(scene.display.tasks) == 3:
            scene.trainer.put_result(tmp_path, 1)
            scene.trainer.finish()
        return False

    summary = scene.end(save_at_third_look)
    assert (summary.status, summary.reason) == (TaskStatus.CANCELLED, "enough")
    (trial,) = read_run_record(scene.run.directory.path).trials
    assert trial.best_checkpoint is not None


def test_board_that_is_away_is_tried_again(scene: Scene, tmp_path: Path) -> None:
    scene.board.away = 3
    scene.trainer.put_result(tmp_path, 1)
    scene.trainer.finish()
    summary = scene.end()
    assert summary.status is TaskStatus.ENDED
    assert [note for note in scene.display.notes if "cannot be reached; trying again in" in note] == (
        scene.display.notes[:3]
    )


def test_stop_is_obeyed_also_while_the_board_is_away(scene: Scene) -> None:
    scene.board.away = 10**6
    assert scene.wait(lambda: len(scene.display.notes) >= 2) is None


@pytest.mark.parametrize(
    ("trainers", "ours", "message"),
    [
        (MASTER.keys, TrainerKeys(KEY, KEY), "signs its results, which only a token verifies"),
        (lambda task_id: TrainerKeys(KEY, KEY), MASTER.token("client").keys("t"), "does not sign its results"),
        (MasterKey.new().keys, MASTER.token("client").keys("t"), "did not issue the token"),
    ],
)
def test_results_that_cannot_be_verified_are_refused_once_a_trainer_has_the_task(
    tmp_path: Path, trainers: Callable[[str], TrainerKeys], ours: ActorKeys, message: str
) -> None:
    board, submitted = MemoryBoard(MemoryServer()), submitted_task(tmp_path)
    task = submitted.task
    board.submit(task)
    run = TaskRun.create(submitted, RunPlace(tmp_path / "out", None, False, []), Recorded())
    watch = TaskWatch(board, task, None, lambda: 0.0)

    def announce(seconds: float) -> None:  # the second time it does nothing
        board.announce(signed_task(replace(task, description={"protocol": 1}), trainers(task.id)))

    waiting = Submission(TaskPlace(board, ours, "redis://host"), watch, run, Recorded(), sleep=announce)
    with run, pytest.raises(UsageError, match=message):
        waiting.wait(never)


# The whole of rlexp submit, on a board of this process.


def memory_board(name: str) -> tuple[BoardAddress, Board]:
    address = BoardAddress("memory", name)
    return address, open_board(address)


def submitter(folder: Path, address: BoardAddress, display: Recorded, **options: Any) -> Submitter:
    stop = options.pop("should_stop", never)
    place = RunPlace(folder / "out", options.pop("name", None), False, [])
    return Submitter(address, SubmitOptions(place, **options), display, stop)


def train_in_thread(board: Board, train: Callable[[ToldTrainer], None]) -> threading.Thread:
    """Let a trainer wait for the only task and train it."""

    def run() -> None:
        while not (tasks := board.tasks()):
            pass
        task = board.describe(tasks[0].id)
        assert task is not None
        train(ToldTrainer(board, task))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_submitted_plan_is_trained_and_evaluated_meanwhile(tmp_path: Path) -> None:
    address, board = memory_board("test-submission-whole")
    display = Recorded()
    plan = submitted_task(tmp_path).plan

    def train(trainer: ToldTrainer) -> None:
        key = password_keys("", trainer.task.id).key
        trainer.put_rows(result_row(1, done=True))
        trainer.put_weights(5, key)
        trainer.publish(weights_version=5)
        trainer.put_result(tmp_path, 1, key)
        trainer.finish()

    thread = train_in_thread(board, train)
    done = submitter(tmp_path, address, display, num_episodes=2).submit(plan)
    thread.join()
    assert done == Submitted(display.submitted[0], tmp_path / "out" / "cartpole", TaskStatus.ENDED)
    assert display.evaluations == [5]
    (result,) = (tmp_path / "out").glob("*/*/result.json")
    assert '"episodes_this_iter": 2' in result.read_text()


def test_nothing_is_created_without_waiting(tmp_path: Path) -> None:
    address, board = memory_board("test-submission-no-wait")
    display = Recorded()
    done = submitter(tmp_path, address, display, waits=False).submit(submitted_task(tmp_path).plan)
    assert (done.directory, done.status) == (None, None)
    assert [task.id for task in board.tasks()] == display.submitted == [done.task_id]
    assert not (tmp_path / "out").exists()


def test_waiting_that_is_ended_can_be_taken_up_again(tmp_path: Path) -> None:
    address, board = memory_board("test-submission-attach")
    plan, display = submitted_task(tmp_path).plan, Recorded()
    trainers: list[ToldTrainer] = []

    def train(trainer: ToldTrainer) -> None:
        trainers.append(trainer)
        trainer.put_rows(result_row(1))

    train_in_thread(board, train)
    first = submitter(tmp_path, address, display, should_stop=lambda: display.num_results > 0).submit(plan)
    assert (first.status, display.left) == (None, [first.task_id])
    trainers[0].put_rows(result_row(2))
    trainers[0].finish(TaskStatus.FAILED, "broken")
    second = submitter(tmp_path, address, Recorded()).attach(first.task_id, TrustedCode())
    assert second == Submitted(first.task_id, first.directory, TaskStatus.FAILED, "broken")
    (result,) = (tmp_path / "out" / "cartpole").glob("*/result.json")
    assert len(result.read_text().splitlines()) == 2
    third = submitter(tmp_path, address, Recorded(), name="again").attach(first.task_id, TrustedCode())
    assert third.directory == tmp_path / "out" / "again"


def test_name_that_is_taken_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    address, board = memory_board("test-submission-taken")
    (tmp_path / "out" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="already exists"):
        submitter(tmp_path, address, Recorded(), name="a").submit(submitted_task(tmp_path).plan)
    assert board.tasks() == []
