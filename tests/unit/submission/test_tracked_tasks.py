"""Tasks and trackers: the submitter's accounts record a task, never those of whoever reads its text."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import yaml

from rlexp.board.client.run import RunPlace, SubmittedTask, TaskRun, task_on_board
from rlexp.runs.record import read_run_record
from rlexp.runs.run_directory import load_recorded_plan
from rlexp.terminal.displays import QuietDisplay
from rlexp.user_code.trusted_code import TrustedCode
from tests.submitted_tasks import EXPERIMENT, submitted_task


def test_the_text_on_the_board_names_no_tracker(tmp_path: Path) -> None:
    submitted = submitted_task(tmp_path, EXPERIMENT, "track={wandb: {entity: our-team}}")
    assert submitted.trial.experiment.track.to == ("wandb",), "this command records it"
    assert "track" not in yaml.safe_load(submitted.task.file)["cartpole"]
    assert "our-team" not in submitted.task.file
    assert trackers_after_resume(submitted, tmp_path) == ("wandb",), "the run is this user's own"


def test_a_tracker_that_the_text_of_a_board_names_is_not_used(tmp_path: Path) -> None:
    task = submitted_task(tmp_path).task
    forged = replace(task, file=f"{task.file}  track: [wandb, mlflow]\n")
    assert yaml.safe_load(forged.file)["cartpole"]["track"] == ["wandb", "mlflow"]
    attached = task_on_board(forged, TrustedCode())
    assert attached.trial.experiment.track.to == ()
    assert trackers_after_resume(attached, tmp_path) == ()


def trackers_after_resume(submitted: SubmittedTask, folder: Path) -> tuple[str, ...]:
    """Return the trackers that ``rlexp resume`` starts for the run that is made for a task."""
    place = RunPlace(folder / "out", None, overwrite=False, command=["rlexp", "submit"])
    with TaskRun.create(submitted, place, QuietDisplay(io.StringIO())) as run:
        path = run.directory.path
    allowed = TrustedCode.of((), (), (), ["wandb://our-team/"])  # rlexp submit has remembered it
    (trial,) = load_recorded_plan(path, read_run_record(path), ["stop.timesteps_total=9000"], allowed).trials
    return trial.experiment.track.to
