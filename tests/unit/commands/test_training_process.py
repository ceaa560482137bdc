"""A trainer that waits: the lead that it takes, the process that it starts, and what becomes of both."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlexp.board.actor import trainer as training_process
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.actor.trainer import TaskTrainer, TrainerLimits, TrainingOptions
from rlexp.board.messages.address import TASK_VARIABLE, BoardAddress, HandedTask, handed_task
from rlexp.board.messages.tasks import Task
from rlexp.board.servers.board import TaskStatus
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import TrialError, UsageError
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.record import RunRecord, TrialRecord
from rlexp.user_code.trusted_code import TrustedCode
from tests.doubles.memory_board import MemoryBoard, MemoryServer

TASK = Task("t1", "small", 1, file="small:\n  env: CartPole-v1\n")
ADDRESS = BoardAddress("redis", "127.0.0.1", 6379, password="geheim")


class Trainer(TaskTrainer):
    """A trainer whose processes run a few lines of Python."""

    def __init__(self, board: MemoryBoard, out: Path, lines: str, *imports: str) -> None:
        options = TrainingOptions(ADDRESS, out, TrainerLimits(), ["--quiet"])
        trusted = TrustedCode(frozenset(), UserModules(imports))
        self.reported: list[str] = []
        self.commands: list[Sequence[str]] = []
        self.lines = lines
        super().__init__(board, "host", trusted, options, self.reported.append)

    def _command(self, task: Task, folder: Path, file: Path) -> list[str]:
        self.commands.append(super()._command(task, folder, file))
        return [sys.executable, "-c", self.lines, str(folder), str(file)]


@pytest.fixture
def board() -> MemoryBoard:
    board = MemoryBoard(MemoryServer())
    board.submit(TASK)
    return board


def never() -> bool:
    return False


def test_process_gets_the_file_and_the_lead(
    board: MemoryBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLEXP_JOIN_PARENT", "1")
    lines = f"""
import os, pathlib, sys
pathlib.Path({str(tmp_path)!r}, "seen").write_text(os.environ[{TASK_VARIABLE!r}])
assert pathlib.Path(sys.argv[2]).read_text() == {TASK.file!r}
assert "RLEXP_JOIN_PARENT" not in os.environ
"""
    trainer = Trainer(board, tmp_path / "out", lines, "my.envs")
    assert trainer.play(TASK, never) is SeatEnd.TASK_OVER
    handed = handed_task({TASK_VARIABLE: (tmp_path / "seen").read_text()})
    assert handed is not None
    assert (handed.id, handed.parent) == ("t1", os.getpid())
    assert handed.member.startswith("host-")
    assert board.lead("t1", handed.member, 1.0, handed.epoch) is not None
    (command,) = trainer.commands
    words = " ".join(command)
    assert f"--out {tmp_path / 'out/tasks'} --name t1 --import my.envs --board redis://127.0.0.1:6379" in words
    assert words.endswith("--quiet")
    assert "geheim" not in words


def make_run(path: Path, board: str | None, task_id: str | None, file: str = TASK.file) -> None:
    """Make a run whose only trial is a task on a board."""
    path.mkdir(parents=True)
    (path / "experiment.yaml").write_text(file)
    trial = TrialRecord("trial", "trial", None, {}, board_task=task_id, board=board)
    RunRecord(path.name, [], {}, None, "host", 1, "", trials=[trial]).write(path)


def command_of(board: MemoryBoard, out: Path, task: Task = TASK) -> list[str]:
    """Return the words of the command by which a task is trained, after the program's name."""
    trainer = Trainer(board, out, "")
    assert trainer.play(task, never) is SeatEnd.TASK_OVER
    (command,) = trainer.commands
    return list(command[command.index("rlexp") + 1 :])


@pytest.mark.parametrize("owners", [["t1"], ["another", "t1", "t1"]])
def test_run_that_was_begun_here_for_the_task_is_resumed(
    board: MemoryBoard, tmp_path: Path, owners: Sequence[str]
) -> None:
    folders = [tmp_path / "tasks" / name for name in ("t1", "t1-2", "t1-3")]
    for folder, owner in zip(folders, owners, strict=False):
        make_run(folder, ADDRESS.server, owner)
    assert command_of(board, tmp_path)[:2] == ["resume", str(folders[owners.index("t1")])]


def test_run_of_a_person_is_never_resumed_for_a_task_of_its_name(board: MemoryBoard, tmp_path: Path) -> None:
    make_run(tmp_path / "t1", ADDRESS.server, "t1")
    words = command_of(board, tmp_path)
    assert words[0] == "run"
    assert words[2:6] == ["--out", str(tmp_path / "tasks"), "--name", "t1"]


@pytest.mark.parametrize(
    ("server", "task_id", "file"),
    [
        (None, None, TASK.file),
        (ADDRESS.server, "T1", TASK.file),
        (None, "t1", TASK.file),
        ("redis://other", "t1", TASK.file),
        (f"{ADDRESS.server}/3", "t1", TASK.file),
        (ADDRESS.server, "t1", "small:\n  env: Acrobot-v1\n"),
    ],
)
def test_run_of_another_task_is_left_alone(
    board: MemoryBoard, tmp_path: Path, server: str | None, task_id: str | None, file: str
) -> None:
    make_run(tmp_path / "tasks" / "t1", server, task_id, file)
    words = command_of(board, tmp_path)
    assert (words[0], words[4:6]) == ("run", ["--name", "t1-2"])


def test_what_is_not_a_run_in_the_place_of_a_task_is_left_alone(board: MemoryBoard, tmp_path: Path) -> None:
    tasks, elsewhere = tmp_path / "tasks", tmp_path / "elsewhere"
    make_run(elsewhere, ADDRESS.server, "t1")
    tasks.mkdir()
    (tasks / "t1").symlink_to(elsewhere)
    (tasks / "t1-2").symlink_to(tmp_path / "nothing")
    (tasks / "t1-3").touch()
    (tasks / "t1-4").mkdir()
    (tasks / "t1-4" / RUN_FILE).write_text("{")
    words = command_of(board, tmp_path)
    assert (words[0], words[4:6]) == ("run", ["--name", "t1-5"])


@pytest.mark.parametrize(("task_id", "name"), [("--out", "out"), ("---", "run"), ("-1", "1")])
def test_id_of_a_task_is_a_name_that_a_run_may_have(
    board: MemoryBoard, tmp_path: Path, task_id: str, name: str
) -> None:
    task = replace(TASK, id=task_id)
    board.submit(task)
    assert command_of(board, tmp_path, task)[4:6] == ["--name", name]


def test_folder_of_tasks_is_not_within_a_run(board: MemoryBoard, tmp_path: Path) -> None:
    make_run(tmp_path / "tasks", None, None)
    with pytest.raises(UsageError, match=r"tasks is a run"):
        Trainer(board, tmp_path, "")


def test_task_that_another_one_leads_is_not_trained(board: MemoryBoard, tmp_path: Path) -> None:
    assert board.lead("t1", "other", 600.0) is not None
    trainer = Trainer(board, tmp_path, "raise SystemExit(1)")
    assert trainer.play(TASK, never) is None
    assert trainer.commands == []


@pytest.mark.parametrize(
    ("lines", "code"), [("raise SystemExit(2)", "2"), ("import os; os.kill(os.getpid(), 9)", "-9")]
)
def test_task_whose_process_fails_can_be_taken_by_others(
    board: MemoryBoard, tmp_path: Path, lines: str, code: str
) -> None:
    with pytest.raises(TrialError, match=f"exit code {code}"):
        Trainer(board, tmp_path, lines).play(TASK, never)
    (task,) = board.tasks()
    assert (task.status, task.trainer) == (TaskStatus.QUEUED, None)


def test_process_is_asked_to_stop_and_the_task_given_back(board: MemoryBoard, tmp_path: Path) -> None:
    started = tmp_path / "started"
    lines = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *args: sys.exit(130))
pathlib.Path({str(started)!r}).touch()
time.sleep(60)
"""
    assert Trainer(board, tmp_path, lines).play(TASK, started.exists) is SeatEnd.STOPPED
    assert board.tasks()[0].trainer is None


def test_process_that_does_not_stop_is_killed(
    board: MemoryBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_process, "END_TIMEOUT_S", 0.0)
    started = tmp_path / "started"
    lines = f"""
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path({str(started)!r}).touch()
time.sleep(60)
"""
    before_s = time.monotonic()
    assert Trainer(board, tmp_path, lines).play(TASK, started.exists) is SeatEnd.STOPPED
    assert time.monotonic() - before_s < 50


def test_interrupt_ends_the_process(board: MemoryBoard, tmp_path: Path) -> None:
    def interrupted() -> bool:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt
        return False

    lines = f"""
import os, pathlib, time
path = pathlib.Path({str(tmp_path)!r}, "pid")
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(60)
"""
    with pytest.raises(KeyboardInterrupt):
        Trainer(board, tmp_path, lines).play(TASK, interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)


def test_handed_task_is_read_as_it_was_written() -> None:
    handed = HandedTask("t1", 7, 12, "host with spaces")
    assert handed_task({TASK_VARIABLE: handed.to_text()}) == handed
    assert handed_task({}) is None
