"""A trial whose process tells a board how it does: its rows, checkpoints for a successor, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.messages.address import PASSWORD_VARIABLE, BoardAddress
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import password_keys
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Board, TaskStatus
from rlexp.board.trainer.link import RECOVERY, RESULT
from rlexp.board.trainer.trial import AssignedTask
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import iteration_of_packed, unpack_checkpoint
from rlexp.runs.trial_files import STOP_FILE
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, BoardSecrets
from rlexp.tuning.trainable import ExperimentTrainable
from tests.lab.board import eventually, listed
from tests.lab.trials import assigned

ID = "t1"
KEY = password_keys("", ID).key
FILE = "small: {}"
ROOM = 1 << 24
ALWAYS, NEVER = 1e-6, 1e6


class Process:
    """The process of a trial, in this one."""

    def __init__(self, trainable: ExperimentTrainable) -> None:
        self.trainable = trainable
        self.rows: list[dict[str, Any]] = []
        self.events: list[str] = []

    def step(self) -> dict[str, Any]:
        result = self.trainable.step()
        self.rows.append(result["row"])
        self.events += result["events"]
        return result


@pytest.fixture
def address(tmp_path: Path) -> BoardAddress:
    return BoardAddress("memory", f"test-board-trials-{tmp_path.name}")


@pytest.fixture
def board(address: BoardAddress) -> Board:
    return open_board(address)


@contextmanager
def process(
    folder: Path,
    address: BoardAddress,
    monkeypatch: pytest.MonkeyPatch,
    period_s: float = NEVER,
    file: str = "",
    num_iterations: int = 3,
) -> Iterator[Process]:
    """Provide a trial that has begun, in a folder of its own, with a worker of its own and a free seat."""
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    keys = {"num_workers": 1, "board": {"min_actors": 0, "recovery_period_s": period_s, "lease_s": 600.0}}
    folder.mkdir(exist_ok=True)
    with assigned(folder, keys, stop={"training_iteration": num_iterations}) as assignment:
        begun = ExperimentTrainable.__new__(ExperimentTrainable)
        begun.setup({ASSIGNMENT: replace(assignment, task=AssignedTask(address, ID, file=file))})
        begun.begin()
        try:
            yield Process(begun)
        finally:
            begun.cleanup()


@pytest.mark.parametrize("is_successor", [False, True])
def test_process_uses_the_secrets_that_it_was_handed_and_not_those_of_its_machine(
    is_successor: bool, tmp_path: Path, address: BoardAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: list[tuple[AssignedTask, Mapping[str, str]]] = []
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    monkeypatch.setattr(trainable, "board_link", lambda task, name, secrets: linked.append((task, secrets)))
    monkeypatch.setenv(PASSWORD_VARIABLE, "of this machine")
    with assigned(tmp_path, {"num_workers": 0}) as assignment:
        process = ExperimentTrainable.__new__(ExperimentTrainable)
        process.setup({ASSIGNMENT: replace(assignment, task=AssignedTask(address, ID, "host-1", 7))})
        process.take_secrets(BoardSecrets({PASSWORD_VARIABLE: "geheim"}, is_successor))
        process.begin()
        process.cleanup()
    ((task, secrets),) = linked
    assert secrets == {PASSWORD_VARIABLE: "geheim"}
    assert (task.id, task.member, task.epoch) == ((ID, "", 0) if is_successor else (ID, "host-1", 7))


def test_rows_and_the_last_checkpoint_are_on_the_board(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path / "a", address, monkeypatch) as trial:
        while not trial.step()["done"]:
            pass
    rows = [json.loads(row) for _, row in board.rows(ID, 0)]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["timesteps_total"] == trial.rows[-1]["timesteps_total"]
    task = listed(board)
    assert (task.status, task.reason, task.trainer) == (TaskStatus.ENDED, "", None)
    assert task.figures["num_updates"] == trial.rows[-1]["info"]["num_updates"]
    assert task.figures["seats"] == 1
    result = board.get_blob(ID, RESULT)
    assert result is not None
    checkpoint = read_checkpoint(unpack_checkpoint(result, tmp_path / "got", KEY, ROOM))
    assert checkpoint.sequence == 3
    assert not [group for group in checkpoint.arrays if group.startswith("replay")]
    assert checkpoint.state["num_steps_sampled"] == trial.rows[-1]["timesteps_total"]


@pytest.mark.key("board.recovery_period_s")
@pytest.mark.parametrize(("period_s", "is_there"), [(ALWAYS, True), (NEVER, False)])
def test_checkpoints_for_a_successor_are_put_so_often(
    tmp_path: Path,
    address: BoardAddress,
    board: Board,
    monkeypatch: pytest.MonkeyPatch,
    period_s: float,
    is_there: bool,
) -> None:
    with process(tmp_path / "a", address, monkeypatch, period_s) as trial:
        eventually(lambda: listed_lead(board))
        trial.step()
        if is_there:
            eventually(lambda: board.get_blob(ID, RECOVERY))
        trial.step()
        assert (board.get_blob(ID, RECOVERY) is not None) is is_there


def listed_lead(board: Board) -> bool:
    return any(task.trainer for task in board.tasks())


def test_successor_goes_on_from_what_the_trainer_left(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path / "a", address, monkeypatch, ALWAYS) as first:
        eventually(lambda: listed_lead(board))
        first.step()
        eventually(lambda: board.get_blob(ID, RECOVERY))
        with pytest.raises(ZeroDivisionError), first.trainable._errors_kept():
            raise ZeroDivisionError
        eventually(lambda: not listed_lead(board))
    assert listed(board).status is TaskStatus.RUNNING
    with process(tmp_path / "b", address, monkeypatch) as second:
        result = second.step()
        assert result["resumed_row"]["training_iteration"] == 1
    assert second.rows[0]["training_iteration"] == 2
    assert second.rows[0]["timesteps_total"] > first.rows[0]["timesteps_total"]
    assert [number for number, _ in board.rows(ID, 0)] == [0, 1]


def test_own_checkpoint_is_used_unless_the_board_has_a_newer_one(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path / "a", address, monkeypatch, file=FILE, num_iterations=10**6) as first:
        first.step()
        (tmp_path / "a" / "out" / "run" / STOP_FILE).touch()
        while not first.step()["done"]:
            pass
    left = board.get_blob(ID, RECOVERY)
    assert left is not None
    folder = tmp_path / "own"
    folder.mkdir()
    own = unpack_checkpoint(left, folder, KEY, ROOM)
    reports = first.trainable._reports
    assert reports is not None
    assert reports.recovery(tmp_path / "new", own) is None
    newer = reports.recovery(tmp_path / "new", folder / "checkpoint_000001")
    assert newer is not None
    assert newer.name == own.name


def test_submitted_task_that_is_stopped_is_handed_over(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.submit(Task(ID, "small", 1, file=FILE))
    with process(tmp_path / "a", address, monkeypatch, file=FILE) as trial:
        (tmp_path / "a" / "out" / "run" / STOP_FILE).touch()
        while not trial.step()["done"]:
            pass
    task = listed(board)
    assert (task.status, task.trainer, task.is_submitted) == (TaskStatus.RUNNING, None, True)
    left = board.get_blob(ID, RECOVERY)
    assert left is not None
    assert iteration_of_packed(left, KEY) == trial.rows[-1]["training_iteration"]
    assert board.get_blob(ID, RESULT) is None


def test_cancelled_task_ends_its_trial_with_a_checkpoint(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path / "a", address, monkeypatch) as trial:
        eventually(lambda: listed_lead(board))
        board.cancel(ID, "by anna")
        reports = trial.trainable._reports
        assert reports is not None
        eventually(lambda: reports.is_cancelled)
        result = trial.step()
        assert (result["done"], result["stopped"], result["reason"]) == (True, False, "its task was cancelled")
        assert result["checkpoint"] is not None
    assert (listed(board).status, listed(board).reason) == (TaskStatus.CANCELLED, "by anna")
    assert board.get_blob(ID, RESULT) is not None


def test_checkpoint_of_strangers_is_left_alone(
    tmp_path: Path, address: BoardAddress, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.announce(Task(ID, "small", 1))
    lead = board.lead(ID, "stranger", 600.0)
    assert lead is not None
    assert board.put_blob(lead, RECOVERY, b"RLXC1 not signed with the key")
    board.give_up(lead)
    with process(tmp_path / "a", address, monkeypatch) as trial:
        trial.step()
    assert trial.rows[0]["training_iteration"] == 1
    assert any("not signed" in event for event in trial.events)
