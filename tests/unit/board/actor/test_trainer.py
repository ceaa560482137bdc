"""A trainer that waits: what a stranger may ask of its machine, the lead that it takes, the process that it starts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlexp.board.actor import trainer
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.actor.trainer import TaskTrainer, TrainerLimits, TrainingOptions, training_obstacle
from rlexp.board.messages.address import TASK_VARIABLE, BoardAddress, handed_task
from rlexp.board.messages.basics import Task
from rlexp.board.servers.board import TaskStatus
from rlexp.cluster.room.machine import this_machine
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import TrialError, UsageError
from rlexp.processes.locks import RUN_FILE
from rlexp.rollout.evaluation import never
from rlexp.runs.record import RunRecord, TrialRecord
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.board import listed, taken, task_with
from tests.lab.memory_board import MemoryBoard, MemoryServer

ALL = TrainerLimits()


def why(task: Task, trusted: TrustedCode = TrustedCode(), limits: TrainerLimits = ALL) -> str:  # noqa: B008
    obstacle = training_obstacle(task, trusted, limits)
    assert obstacle is not None
    assert obstacle.hint
    return obstacle.message


def test_experiment_with_an_env_of_gymnasium_is_trained() -> None:
    assert training_obstacle(task_with(), TrustedCode(), ALL) is None
    assert training_obstacle(task_with(run="DQN", stop={"num_updates": 10}), TrustedCode(), ALL) is None
    assert training_obstacle(task_with(local_dir="/etc"), TrustedCode(), ALL) is None  # RLlib's key, without an effect


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (task_with(restore="/home/anna/checkpoint_000001"), "restore"),
        (task_with(storage="file:///home/anna"), "storage"),
        (task_with(env="os:system"), "a class of its own"),
        (task_with(env="antigravity:CartPole-v1"), "a class of its own"),
        (task_with({"env_config": {"render_mode": "human"}}), "env_config"),
        (task_with({"evaluation_config": {"env_config": {"xml_file": "/etc/passwd"}}}), "env_config"),
        (task_with(num_samples=2), "several variants"),
        (task_with({"lr": {"grid_search": [1e-3, 1e-4]}}), "several variants"),
        (task_with(run="PPO"), "cannot be joined"),
        (task_with({"callbacks": "os.system"}), "cannot be read"),
        (Task("t1", "n", 1, file="a: &a [*a]"), "cannot be read"),
        (Task("t1", "n", 1, file="!!python/object/apply:os.system [id]"), "cannot be read"),
        (Task("t1", "n", 1, file="../x:\n  run: APEX\n  env: CartPole-v1\n"), "cannot be read"),
        (Task("t1", "n", 1, file="\0"), "cannot be read"),
        (Task("t1", "n", 1), "was not submitted"),
    ],
)
def test_what_reaches_the_machine_is_refused(given: Task, said: str) -> None:
    assert said in why(given)


def test_nothing_of_the_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert "a class of its own" in why(task_with(env="evil:Env"))


def test_env_that_was_allowed_may_have_its_arguments() -> None:
    name = "tests.lab.envs:PayingEnv"
    given = task_with({"env_config": {"pay": 3.0}}, env=name)
    trusted = TrustedCode(frozenset({name}), UserModules(("tests.lab.envs",)))
    assert "a class of its own" in why(given)
    assert training_obstacle(given, trusted, ALL) is None


def test_task_that_needs_more_than_is_allowed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(this_machine(), cpus=64, memory_total=1 << 40)
    monkeypatch.setattr(trainer, "this_machine", lambda: large)
    given = task_with({"num_workers": 8, "buffer_size": 10_000_000})
    assert training_obstacle(given, TrustedCode(), ALL) is None
    assert training_obstacle(given, TrustedCode(), TrainerLimits(cpus=32)) is None
    assert "CPUs" in why(given, limits=TrainerLimits(cpus=4))
    assert "for replay" in why(given, limits=TrainerLimits(max_memory=1 << 20))


def test_task_in_a_cluster_may_need_more_than_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "this_machine", lambda: replace(this_machine(), cpus=2))
    resources = {"custom_resources_per_worker": {"tpu": 1}}
    given = task_with({"num_workers": 64, "num_gpus": 1, "buffer_size": 10_000_000, **resources})
    assert training_obstacle(given, TrustedCode(), TrainerLimits(in_cluster=True)) is None
    assert "CPUs" in why(given, limits=TrainerLimits(cpus=4, in_cluster=True))
    assert "for replay" in why(given, limits=TrainerLimits(max_memory=1 << 20, in_cluster=True))


def test_limits_beyond_the_machine_do_not_enlarge_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "this_machine", lambda: replace(this_machine(), cpus=2))
    assert "CPUs" in why(task_with({"num_workers": 8}), limits=TrainerLimits(cpus=64))


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
    taken(board, "other")
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
    assert (listed(board).status, listed(board).trainer) == (TaskStatus.QUEUED, None)


def test_process_is_asked_to_stop_and_the_task_given_back(board: MemoryBoard, tmp_path: Path) -> None:
    started = tmp_path / "started"
    lines = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *args: sys.exit(130))
pathlib.Path({str(started)!r}).touch()
time.sleep(60)
"""
    assert Trainer(board, tmp_path, lines).play(TASK, started.exists) is SeatEnd.STOPPED
    assert listed(board).trainer is None


def test_process_that_does_not_stop_is_killed(
    board: MemoryBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "END_TIMEOUT_S", 0.0)
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
