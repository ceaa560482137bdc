"""A locked directory stays locked, whatever becomes of its lock file and its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.errors import ResumeError
from rlexp.processes.locks import OpenFolder, RunLock, is_in_use
from tests.unit.runs.directory_failures import LOSSES, Lose, moved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


@LOSSES
def test_open_folder_notices_that_its_path_leads_elsewhere(lose: Lose, folder: Path) -> None:
    opened = OpenFolder(folder)
    assert opened.is_in_place
    lose(folder)
    assert not opened.is_in_place
    assert opened.new_place == (folder.with_name("moved") if lose is moved else None)
    opened.close()
    opened.close()
    assert not opened.is_in_place


def test_directory_stays_locked_without_its_lock_file(folder: Path) -> None:
    lock = RunLock(folder)
    (folder / "rlexp.lock").unlink()
    assert is_in_use(folder)
    for _ in range(2):  # the first attempt makes the file anew
        with pytest.raises(ResumeError, match="is in use by another process"):
            RunLock(folder)
    assert is_in_use(folder)
    lock.release()
    assert not is_in_use(folder)
    RunLock(folder).release()


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 900 + "]" * 900, "[" * 10**5], ids=["empty", "list", "900", "10^5"]
)
def test_lock_file_with_other_content_names_nobody(content: str, folder: Path) -> None:
    lock = RunLock(folder)
    (folder / "rlexp.lock").write_text(content, encoding="utf-8")
    with pytest.raises(ResumeError, match="is in use by another process"):
        RunLock(folder)
    lock.release()


def test_moved_directory_stays_locked(folder: Path) -> None:
    lock = RunLock(folder)
    moved(folder)
    with pytest.raises(ResumeError, match="is in use by pid"):
        RunLock(folder.with_name("moved"))
    lock.release()
