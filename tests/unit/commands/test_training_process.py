"""A trainer that waits: the lead that it takes, the process that it starts, and what becomes of both."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlexp.agents.board.submitted_task import TrainerLimits
from rlexp.agents.board.trusted_code import TrustedCode
from rlexp.commands import training_process
from rlexp.commands.training_process import TaskTrainer, TrainingOptions
from rlexp.config.keys.user_modules import UserModules
from rlexp.errors import TrialError
from rlexp.joined_actors.outbox import SeatEnd
from rlexp.runs.run_record import RUN_FILE
from rlexp.transport.address import BoardAddress
from rlexp.transport.board import Task, TaskStatus
from rlexp.transport.boards.memory import MemoryBoard, MemoryServer
from rlexp.tuning.board.handed_task import TASK_VARIABLE, HandedTask, handed_task

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
    assert f"--out {tmp_path / 'out'} --name t1 --import my.envs --board redis://127.0.0.1:6379" in words
    assert words.endswith("--quiet")
    assert "geheim" not in words


def test_run_that_was_begun_here_is_resumed(board: MemoryBoard, tmp_path: Path) -> None:
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1" / RUN_FILE).touch()
    trainer = Trainer(board, tmp_path, "")
    trainer.play(TASK, never)
    (command,) = trainer.commands
    assert list(command[3:5]) == ["resume", str(tmp_path / "t1")]


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
