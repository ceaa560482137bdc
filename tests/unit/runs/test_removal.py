"""What a killed command left of a run is deleted by the next one, and nothing else is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.compare.run_listing import found_at
from rlexp.processes.locks import RunLock
from rlexp.runs.directories import remove_remains
from rlexp.runs.run_directory import RunDirectory

KILLED_WHILE_IT_DELETES = """
import os, shutil, signal, sys
from pathlib import Path
from rlexp.runs.run_directory import RunDirectory
deleted = shutil.rmtree
def delete(path, **options):
    deleted(path, **options)
    os.kill(os.getpid(), signal.SIGKILL)
shutil.rmtree = delete
RunDirectory.create(Path(sys.argv[1]), "run", None, [], overwrite=True)
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a finished run of two trials."""
    with RunDirectory.create(tmp_path / "out", "run", None, [], overwrite=False) as run:
        run.write()
        for name in ("00000", "00001"):
            (run.path / name).mkdir()
            (run.path / name / "result.json").touch()
    return tmp_path / "out"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_remains_of_a_killed_overwrite_go_with_the_next_command(out: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_DELETES, str(out)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (remains,) = names(out)
    assert remains.startswith(".run.")
    assert "rlexp.lock" in names(out / remains)
    assert found_at(out) == []
    with RunDirectory.create(out, "run", None, [], overwrite=True) as run:
        run.write()
    assert names(out) == ["run"]


def test_resume_deletes_them_and_what_was_being_written(out: Path) -> None:
    (out / ".other.7.removing").mkdir()
    unfinished = out / "run/00000/.checkpoint_000003.12.writing"
    unfinished.mkdir()
    (unfinished / "state.json").touch()
    (out / "run/.run.json.12.writing").touch()
    kept = names(out / "run")
    RunDirectory.open(out / "run").close()
    assert names(out) == ["run"]
    assert names(out / "run") == [name for name in kept if not name.endswith(".writing")]
    assert names(out / "run/00000") == ["result.json"]


def test_remains_in_use_and_what_only_has_such_a_name_stay(out: Path, tmp_path: Path) -> None:
    (out / ".a.1.removing").mkdir()
    (out / ".b.1.removing").mkdir()
    (out / ".b.1.removing/precious").touch()
    (out / ".c.1.removing").symlink_to(out / "run")
    (out / ".d.1.removing").touch()
    (out / ".removing").mkdir()
    with RunLock(out / ".a.1.removing"):
        remove_remains(out)
        assert names(out) == [".a.1.removing", ".b.1.removing", ".c.1.removing", ".d.1.removing", ".removing", "run"]
    remove_remains(out)
    assert ".a.1.removing" not in names(out)
    assert (out / ".b.1.removing/precious").exists()
    assert (out / "run/00000").exists()
