"""What counts as left behind by a killed command: folders that this user made, and nothing that only looks like one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rlexp.runs.run_lock import RunLock
from rlexp.sessions.leftovers import find_leftovers


def test_link_is_not_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    for folder in (tmp_path / "rlexp-dead", tmp_path / "run"):
        folder.mkdir()
        RunLock(folder).release()
    (tmp_path / "rlexp-link").symlink_to(tmp_path / "run")
    assert [leftover.folder.name for leftover in find_leftovers()] == ["rlexp-dead"]
