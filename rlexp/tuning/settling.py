"""Settling: what a killed search had decided and not done is done before it continues."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rlexp.checkpoint import Manifest, newest_manifest
from rlexp.config.keys.trial import Trial
from rlexp.errors import CheckpointError
from rlexp.runs.checkpoints import copy_checkpoint
from rlexp.runs.last_row import checkpoint_row, last_row
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_record import RecordedError
from rlexp.search.search import Search
from rlexp.search.state import OVER, Restored
from rlexp.tuning.stop_condition import ended_by, writes_checkpoint


def settle(search: Search, past: Restored, directory: RunDirectory) -> None:
    """Do what was decided and not done when the sweep was killed, and queue unfinished trials before new ones."""
    state = past.state
    for standing in state.standings.trials():
        if not directory.record.knows(standing.trial.name):
            directory.recover(standing.trial)
    for trial, checkpoint in past.exploited:
        _copy_exploited(search, trial, checkpoint, directory)
    for trial in state.unfinished():
        newest = newest_manifest(directory.trial_directory(trial))
        if newest is not None:
            _record_lost_row(search, trial, *newest, directory)
        _end_if_due(search, trial, directory)
        standing = state.standings.of(trial)
        if newest is None and standing.iterations and standing.status not in OVER:
            search.standings.note(f"{trial.name} has no checkpoint and starts from the beginning")
    for standing in state.standings.trials():
        if standing.status in OVER and directory.record.trial(standing.trial.name).status is not standing.status:
            failure = None if standing.error is None else RecordedError(standing.error)
            directory.trial_status(standing.trial, standing.status, failure)
    unfinished = state.unfinished()
    state.requeue()
    directory.restart(unfinished)
    over = len(state.standings.trials()) - len(unfinished)
    new = state.standings.number_of_configurations - len(state.standings.ranked()) - len(state.standings.refused)
    search.standings.note(
        f"resumed; trials that ended before: {over}, that continue: {len(unfinished)}; new configurations: {new}"
    )


def _copy_exploited(search: Search, trial: Trial, checkpoint: str, directory: RunDirectory) -> None:
    """Copy the checkpoint that a trial is to continue from, unless that was done and only its start was not."""
    newest = newest_manifest(directory.trial_directory(trial))
    if newest is not None and newest[0].name == Path(checkpoint).name:
        row = checkpoint_row(newest[0], newest[1].metadata)
        if row is not None and row["trial_name"] != trial.name:
            directory.change(trial)
            return
    try:
        copy_checkpoint(directory.path / checkpoint, directory.trial_directory(trial))
    except (CheckpointError, OSError) as error:
        search.standings.note(f"{trial.name[:5]} cannot copy {checkpoint}: {error}")
    directory.change(trial)


def _record_lost_row(search: Search, trial: Trial, newest: Path, manifest: Manifest, directory: RunDirectory) -> None:
    """Record the row in a trial's newest checkpoint, where the sweep was killed before it was recorded."""
    row, folder = checkpoint_row(newest, manifest.metadata), directory.trial_directory(trial)
    if row is None or row["trial_name"] != trial.name:
        return
    iteration, standing = row["training_iteration"], search.standings.of(trial)
    kept = last_row(folder)
    if kept is None or min(kept["training_iteration"], standing.iterations) < iteration:
        values, columns = search.hyperparameters(trial), trial.experiment.config.AGENT_COLUMNS
        with closing(TrialRecorder(folder, values, search.hparams_metrics, columns)) as recorder:
            recorder.record(row)
        directory.trial_result(trial, row)
        directory.trial_checkpoint(trial, newest, row)
    if standing.iterations >= iteration:
        return
    is_milestone = writes_checkpoint(search.milestones, standing.progress, row)
    search.on_result(trial, row, newest if is_milestone else None)


def _end_if_due(search: Search, trial: Trial, directory: RunDirectory) -> None:
    """End a trial whose last row, or a decision to stop it, is on the disk while its end is not."""
    row = last_row(directory.trial_directory(trial))
    if search.is_pruned(trial):
        search.on_end(trial, False, None)
    elif row is not None and ended_by(trial.experiment.stop, row):
        if row["training_iteration"] > search.standings.of(trial).iterations:
            search.on_result(trial, row, None)
        search.on_end(trial, True, None)
