"""What is left of a command that is killed with -9: nothing.

What counts as left behind by a killed command: folders that rlexp made, and nothing that only looks like one.

What a session leaves in the folder of temporary files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlexp.processes.family import (
    MARKER,
    SESSION,
    Guard,
    SessionFolder,
    TemporaryFolder,
    find_leftovers,
    kill_processes_of,
    processes_of,
)
from rlexp.processes.locks import RunLock
from tests.lab.run_folders import MadeTrial, make_run

TIMEOUT_S = 20.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
Start = Callable[[Path], psutil.Process]
COMMAND = """
import os, subprocess, sys
from pathlib import Path
from rlexp.processes.family import Guard
folder = Path(sys.argv[1])
os.environ["RLEXP_SESSION"] = str(folder)
guard = Guard(folder)
child = subprocess.Popen(sys.argv[2:], start_new_session=True)
print(guard._process.pid, child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "rlexp-session"
    path.mkdir()
    return path


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that do nothing, for the session in a folder."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(folder: Path) -> psutil.Process:
        started.append(subprocess.Popen(SLEEP, env={**os.environ, SESSION: str(folder)}))
        process = psutil.Process(started[-1].pid)
        deadline = time.monotonic() + TIMEOUT_S
        while process not in processes_of(folder):  # for a moment it has no environment at all
            assert time.monotonic() < deadline
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait(TIMEOUT_S)


def test_guard_ends_processes_and_removes_the_folder_of_a_killed_command(folder: Path) -> None:
    command = subprocess.Popen([sys.executable, "-c", COMMAND, folder, *SLEEP], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in command.stdout.readline().split()]
    deadline = time.monotonic() + TIMEOUT_S
    while processes_of(folder) != processes[1:]:  # for a moment a process has no environment at all
        assert time.monotonic() < deadline
    command.send_signal(signal.SIGKILL)
    command.wait(TIMEOUT_S)
    command.stdout.close()
    _, alive = psutil.wait_procs(processes, timeout=TIMEOUT_S)
    assert not alive
    assert not folder.exists()


def test_children_with_another_environment_are_ended_too(folder: Path) -> None:
    parent = "import subprocess, sys; c = subprocess.Popen(sys.argv[1:], env={}); print(c.pid, flush=True); c.wait()"
    words = [sys.executable, "-c", parent, *SLEEP]
    environment = {**os.environ, SESSION: str(folder)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        kill_processes_of(folder, TIMEOUT_S)
    psutil.wait_procs([child], timeout=TIMEOUT_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_dismissed_guard_touches_nothing(folder: Path, start: Start) -> None:
    guard, process = Guard(folder), start(folder)
    guard.dismiss()
    assert guard._process.returncode == 0
    assert process.is_running()
    assert folder.exists()


def test_processes_of_other_sessions_are_left_alone(folder: Path, tmp_path: Path, start: Start) -> None:
    mine, other = start(folder), start(tmp_path)
    kill_processes_of(folder, TIMEOUT_S)
    assert processes_of(folder) == []
    mine.wait(TIMEOUT_S)
    assert processes_of(tmp_path) == [other]


def test_leftover_is_an_unlocked_folder_with_the_processes_of_its_session(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder.parent))
    temporary = TemporaryFolder()
    folder, process = temporary.path, start(temporary.path)
    assert find_leftovers() == []
    temporary.release()
    (leftover,) = find_leftovers()
    assert (leftover.folder, leftover.processes) == (folder, (process,))
    leftover.remove()
    assert not folder.exists()
    assert find_leftovers() == []


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a command that was killed, among the temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = TemporaryFolder()
    (folder.path / "file").write_bytes(b"x" * 1000)
    folder.release()
    return folder.path


def finished_run(path: Path, dead: Path) -> None:
    make_run(path, [MadeTrial([1.0])])
    RunLock(path).release()


def run_with_a_copied_marker(path: Path, dead: Path) -> None:
    make_run(path, [MadeTrial([1.0])])
    RunLock(path).release()
    shutil.copy(dead / MARKER, path)


def copied_folder(path: Path, dead: Path) -> None:
    shutil.copytree(dead, path)


def forged_name(path: Path, dead: Path) -> None:
    shutil.copytree(dead, path)
    content = json.loads((path / MARKER).read_text())
    (path / MARKER).write_text(json.dumps({**content, "folder": path.name}))


def linked_folder(path: Path, dead: Path) -> None:
    path.symlink_to(dead)


def linked_marker(path: Path, dead: Path) -> None:
    path.mkdir()
    RunLock(path).release()
    (path / MARKER).symlink_to(dead / MARKER)


def empty_marker(path: Path, dead: Path) -> None:
    path.mkdir()
    RunLock(path).release()
    (path / MARKER).touch()


def live_session(path: Path, dead: Path) -> TemporaryFolder:
    return TemporaryFolder()


@pytest.mark.parametrize(
    "make",
    [
        finished_run,
        run_with_a_copied_marker,
        copied_folder,
        forged_name,
        linked_folder,
        linked_marker,
        empty_marker,
        live_session,
    ],
)
def test_only_what_rlexp_made_is_removed(make: Callable[[Path, Path], TemporaryFolder | None], dead: Path) -> None:
    made = make(dead.with_name("rlexp-cartpole"), dead)
    leftovers = find_leftovers()
    assert [leftover.folder for leftover in leftovers] == [dead]
    others = set(dead.parent.iterdir()) - {dead}
    for leftover in leftovers:
        leftover.remove()
    assert set(dead.parent.iterdir()) == others
    if made is not None:
        made.release()


def test_a_run_that_somebody_put_into_such_a_folder_is_kept(dead: Path) -> None:
    (before,) = find_leftovers()
    make_run(dead / "results" / "cartpole", [MadeTrial([1.0])])
    assert find_leftovers() == []
    before.remove()
    assert (dead / "results" / "cartpole" / "run.json").is_file()


def test_nothing_is_left_where_the_guard_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        SessionFolder()
    assert not list(tmp_path.iterdir())
