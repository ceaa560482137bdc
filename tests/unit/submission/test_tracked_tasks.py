"""Tasks and trackers: the submitter's accounts record a task, never those of whoever reads its text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from rlexp.agents.board.trusted_code import TrustedCode
from rlexp.submission.experiment_task import task_on_board
from tests.submitted_tasks import EXPERIMENT, submitted_task


def test_the_text_on_the_board_names_no_tracker(tmp_path: Path) -> None:
    submitted = submitted_task(tmp_path, EXPERIMENT, "track={wandb: {entity: our-team}}")
    assert submitted.trial.experiment.track.to == ("wandb",), "this command records it"
    assert "track" not in yaml.safe_load(submitted.task.file)["cartpole"]
    assert "our-team" not in submitted.task.file


def test_a_tracker_that_the_text_of_a_board_names_is_not_used(tmp_path: Path) -> None:
    task = submitted_task(tmp_path).task
    forged = replace(task, file=f"{task.file}  track: [wandb, mlflow]\n")
    assert yaml.safe_load(forged.file)["cartpole"]["track"] == ["wandb", "mlflow"]
    assert task_on_board(forged, TrustedCode()).trial.experiment.track.to == ()
