"""Several processes of one command: which are started again, what is said of them, and how all of them end."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlexp.board.messages.basics import Backoff
from rlexp.commands import join
from rlexp.commands.join import MOST_QUICK, JoinRole, join_in_processes
from rlexp.processes.child import own_environment, own_program

TIMEOUT_S = 30.0
PLAYS = """
import pathlib, os, signal, sys, time
def leave(number, frame):
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
folder = pathlib.Path(sys.argv[1])
(folder / f"{os.getpid()}.words").write_text(" ".join(sys.argv[2:]))
(folder / f"{os.getpid()}.words").rename(folder / f"{os.getpid()}.started")
while not (folder / "done").exists():
    time.sleep(0.01)
"""


class Scene:
    """The processes in a folder, and what is done meanwhile in another thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def run(self, meanwhile: Callable[[], None], number: int = 2, limit_s: float | None = None) -> int:
        failed: list[BaseException] = []

        def act() -> None:
            try:
                meanwhile()
            except BaseException as error:
                failed.append(error)
                (self.folder / "done").touch()

        before = set(psutil.Process().children(recursive=True))  # of other tests, which share a Ray for example
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        command = [sys.executable, "-c", PLAYS, str(self.folder)]
        code = join_in_processes(command, number, JoinRole.ACTOR, limit_s, self.said.append)
        thread.join(TIMEOUT_S)
        assert not failed, failed
        assert set(psutil.Process().children(recursive=True)) <= before
        return code

    def alive(self) -> list[psutil.Process]:
        """Return those processes of the folder that have not been waited for."""
        return [child for child in psutil.Process().children() if child.pid in self.started()]

    def started(self) -> set[int]:
        return {int(path.stem) for path in self.folder.glob("*.started")}

    def wait_until(self, number: int) -> set[int]:
        """Wait until so many processes were started."""
        return self.wait_for(lambda: len(self.started()) >= number) and self.started()

    def wait_for(self, condition: Callable[[], object]) -> set[int]:
        ends_at = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < ends_at, (self.said, self.started())
        return self.started()

    def end(self) -> None:
        (self.folder / "done").touch()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(join, "_POLL_S", 0.01)
    monkeypatch.setattr(Backoff, "failed", lambda backoff: 0.0)
    return Scene(tmp_path)


def test_process_that_was_killed_is_reaped_said_and_started_again(scene: Scene) -> None:
    def meanwhile() -> None:
        first = scene.wait_until(2)
        killed = max(first)
        os.kill(killed, signal.SIGKILL)
        scene.wait_until(3)
        assert not psutil.pid_exists(killed)
        scene.end()

    assert scene.run(meanwhile) == 0
    (said,) = scene.said
    assert said.startswith("actor ")
    assert said.endswith(" of 2 ended by signal 9 (SIGKILL); it is started again in 0.0 s")


def test_process_that_is_killed_again_and_again_is_given_up(scene: Scene) -> None:
    def meanwhile() -> None:
        killed: set[int] = set()
        for _ in range(MOST_QUICK):
            scene.wait_for(lambda: scene.started() - killed)
            (pid,) = scene.started() - killed
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)

    assert scene.run(meanwhile, number=1) == 128 + signal.SIGKILL
    assert len(scene.said) == len(scene.started()) == MOST_QUICK
    assert scene.said[-1].endswith(f"{MOST_QUICK} times, each within 60 s; it is not started again")


def test_process_that_cannot_be_started_again_is_tried_later_and_the_others_go_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, starts = subprocess.Popen, itertools.count(1)

    def third_fails(command: list[str], **given: Any) -> subprocess.Popen[bytes]:
        if next(starts) == 3:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return popen(command, **given)

    monkeypatch.setattr(subprocess, "Popen", third_fails)

    def meanwhile() -> None:
        os.kill(max(scene.wait_until(2)), signal.SIGKILL)
        scene.wait_until(3)
        scene.end()

    assert scene.run(meanwhile) == 0
    assert [text.partition(" of 2 ")[2].partition(";")[0] for text in scene.said] == [
        "ended by signal 9 (SIGKILL)",
        "could not be started (Cannot allocate memory)",
    ]


def test_failures_after_a_long_time_are_not_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "QUICK_S", 0.0)

    def meanwhile() -> None:
        killed: set[int] = set()
        for _ in range(MOST_QUICK + 1):
            scene.wait_for(lambda: scene.started() - killed)
            (pid,) = scene.started() - killed
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        scene.wait_for(lambda: scene.started() - killed)
        scene.end()

    assert scene.run(meanwhile, number=1) == 0


def test_process_that_is_asked_to_leave_is_not_started_again(scene: Scene) -> None:
    def meanwhile() -> None:
        os.kill(max(scene.wait_until(2)), signal.SIGTERM)
        scene.wait_for(lambda: len(scene.alive()) == 1)
        scene.end()

    assert scene.run(meanwhile) == 128 + signal.SIGTERM
    assert (len(scene.started()), scene.said) == (2, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_also_one_that_is_to_be_started_again(
    scene: Scene, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "failed", lambda backoff: 600.0)

    def meanwhile() -> None:
        os.kill(max(scene.wait_until(2)), signal.SIGKILL)
        scene.wait_for(lambda: scene.said)
        os.kill(os.getpid(), number)

    assert scene.run(meanwhile) == 128 + number
    assert len(scene.started()) == 2


def test_process_that_is_started_again_has_the_time_that_is_left(scene: Scene) -> None:
    def meanwhile() -> None:
        first = scene.wait_until(1)
        os.kill(max(first), signal.SIGKILL)
        scene.wait_until(2)
        scene.end()

    assert scene.run(meanwhile, number=1, limit_s=3600.0) == 0
    for path in scene.folder.glob("*.started"):
        option, left = path.read_text().split()
        assert option == "--for"
        assert 3500 < int(left.removesuffix("s")) <= 3600


def test_error_of_a_process_is_the_exit_code_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    command = [sys.executable, "-c", "raise SystemExit(2)"]
    assert join_in_processes(command, 2, JoinRole.TRAINER, None, said.append) == 2
    assert sorted(said) == [f"trainer {n} of 2 ended with exit code 2; it is not started again" for n in (1, 2)]


def test_a_process_imports_nothing_from_where_the_command_runs(tmp_path: Path) -> None:
    for name in ("importlib", "enum", "signal", "socket", "rlexp"):
        (tmp_path / f"{name}.py").write_text("open('sentinel', 'w')", encoding="utf-8")
    command = own_program("rlexp", "join", "--help")
    ended = subprocess.run(command, cwd=tmp_path, env=own_environment(os.environ), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "join" in ended.stdout
    assert not (tmp_path / "sentinel").exists()
