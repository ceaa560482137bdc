"""Who may tell us which modules to import: nobody but the user who runs the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlexp.errors import ResumeError
from rlexp.runs.trust import refuse_foreign, run_of


def test_own_files_are_accepted(tmp_path: Path) -> None:
    refuse_foreign(tmp_path)


def test_world_writable_files_are_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o707)
    with pytest.raises(ResumeError, match="may be written by every user"):
        refuse_foreign(tmp_path)


def test_files_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        refuse_foreign(tmp_path)


def test_run_of_a_checkpoint_is_the_checkpoint_itself_once_it_was_copied(tmp_path: Path) -> None:
    checkpoint = tmp_path / "copies" / "checkpoint_000001"
    checkpoint.mkdir(parents=True)
    assert run_of(checkpoint) == checkpoint
    (tmp_path / "run.json").touch()
    assert run_of(checkpoint) == tmp_path
