"""A run's directory that is lost ends the run; what a kill left of one is deleted by the next run, and nothing else."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.cluster.session import OwnRay
from rlexp.compare.run_listing import found_at
from rlexp.errors import TrialError
from rlexp.processes.locks import RunLock
from rlexp.processes.signals import StopRequest
from rlexp.runs.directories import remove_remains
from rlexp.runs.record import Status
from rlexp.runs.run_directory import LostDirectoryError, RunDirectory
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT
from rlexp.tuning.run import run_in_session
from rlexp.tuning.trainable import ExperimentTrainable
from tests.lab.trials import LOSSES, Lose, assigned, moved, replaced


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that goes on."""
    directory = RunDirectory.create(tmp_path / "out", "run", None, [], overwrite=False)
    directory.write()
    return directory


@LOSSES
def test_nothing_is_written_where_a_lost_directory_was(lose: Lose, run: RunDirectory) -> None:
    run.check()
    lose(run.path)
    before = sorted(run.path.parent.rglob("*"))
    for write in (run.check, run.write, lambda: run.finish(Status.ERROR)):
        with pytest.raises(LostDirectoryError, match="moved to .*moved" if lose is moved else "was deleted") as caught:
            write()
    assert (caught.value.hint is not None) == (lose is moved)
    run.close()
    assert sorted(run.path.parent.rglob("*")) == before


@pytest.mark.parametrize("fails", [KeyboardInterrupt, OSError])
def test_command_that_lost_its_directory_says_so_and_leaves_the_next_run_alone(
    fails: type[BaseException], run: RunDirectory
) -> None:
    class Session(OwnRay):
        def __enter__(self) -> Self:
            replaced(run.path)
            (run.path / "of the next run").touch()
            raise fails

    display = QuietDisplay(io.StringIO())
    with StopRequest(lambda: None) as request, pytest.raises(LostDirectoryError):
        run_in_session(FixedTrials([]), [], run, display, request, Session(1, 0, debug=False))
    run.close()
    assert [path.name for path in run.path.iterdir()] == ["of the next run"]


@LOSSES
def test_trial_that_lost_its_directory_ends_with_an_error_and_makes_no_other(
    lose: Lose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    with assigned(tmp_path, checkpoint_freq=1) as assignment:
        process = ExperimentTrainable.__new__(ExperimentTrainable)  # Tune's own part of a Trainable is not needed
        process.setup({ASSIGNMENT: assignment})
        process.begin()
        lose(assignment.directory)
        before = sorted(assignment.directory.parent.rglob("*"))
        with pytest.raises(TrialError, match="was deleted or moved while the trial ran"):
            process.step()
        process.cleanup()
        assert sorted(assignment.directory.parent.rglob("*")) == before


def test_deleted_directory_of_a_trial_is_made_anew_when_the_run_is_resumed(tmp_path: Path) -> None:
    with assigned(tmp_path) as assignment:
        shutil.rmtree(assignment.directory)
    with RunDirectory.open(assignment.directory.parent) as directory:
        directory.restart([assignment.trial])
        assert [path.name for path in assignment.directory.iterdir()] == ["params.json"]


KILLED_WHILE_IT_DELETES = """
import os, shutil, signal, sys
from pathlib import Path
from rlexp.runs.run_directory import RunDirectory
deleted = shutil.rmtree
def delete(path, **options):
    deleted(path, **options)
    if Path(path).is_relative_to(sys.argv[1]):  # a newer filelock deletes a folder of its own when it is imported
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
