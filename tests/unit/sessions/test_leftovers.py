"""What counts as left behind by a killed command: folders that rlexp made, and nothing that only looks like one."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rlexp.processes.family import MARKER, TemporaryFolder, find_leftovers
from rlexp.processes.locks import RunLock
from tests.unit.run_results.run_folders import MadeTrial, make_run


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
