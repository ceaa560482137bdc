"""What a session leaves in the folder of temporary files."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from rlexp.processes.family import SessionFolder


def test_nothing_is_left_where_the_guard_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        SessionFolder()
    assert not list(tmp_path.iterdir())
