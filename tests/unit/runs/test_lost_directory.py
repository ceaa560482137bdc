"""A run whose directory is deleted, moved or replaced ends, writes nothing more, and lets nobody in meanwhile."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Self

import pytest

from rlexp.cluster.own import OwnRay
from rlexp.cluster.pool import InlineTaskPool
from rlexp.errors import TrialError
from rlexp.processes.signals import StopRequest
from rlexp.runs.record import Status
from rlexp.runs.run_directory import LostDirectoryError, RunDirectory
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT
from rlexp.tuning.run import run_in_session
from rlexp.tuning.trainable import ExperimentTrainable
from tests.behaviour.inline_trials import assigned
from tests.unit.runs.directory_failures import LOSSES, Lose, moved, replaced


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
