"""The open work of a killed run or sweep: which of its trials have ended, and which decisions are not carried out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan
from rlexp.errors import CheckpointError, ResumeError
from rlexp.files import to_json
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.checkpoints.contents import Manifest
from rlexp.runs.checkpoints.kept import copy_checkpoint
from rlexp.runs.checkpoints.trial import newest_manifest
from rlexp.runs.record import RESOLVED_FILE, RecordedError, RunRecord, Status, TrialRecord
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.rows import checkpoint_row, last_row
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.search import Search
from rlexp.search.state import OVER, Restored
from rlexp.text import masked
from rlexp.tuning.stop_condition import ended_by, writes_checkpoint


def recorded_trials(path: Path, plan: Plan, record: RunRecord) -> Iterator[Trial]:
    """Yield the trials of ``plan``, read from ``resolved.yaml``, with their former names and order.

    The file has its keys in another order than the original, so a grid's trials have another order and other names. The
    varied values and the seed identify them. Raises ResumeError for an unknown one.
    """
    names: dict[str, deque[str]] = defaultdict(deque)
    for known in record.trials:
        names[_identity(known.varied, known.seed)].append(known.name)
    found: list[Trial] = []
    for trial in plan.trials:
        called = names[_identity(masked(trial.varied), trial.experiment.config.seed)]
        if not called:
            raise ResumeError(
                f"{path / RESOLVED_FILE} makes a trial {trial.name} that {path / RUN_FILE} does not know",
                "do not change the values of its grid or its seed",
            )
        found.append(replace(trial, name=called.popleft()))
    order = {known.name: index for index, known in enumerate(record.trials)}
    for trial in sorted(found, key=lambda trial: order[trial.name]):
        yield replace(trial, index=order[trial.name])


def _identity(varied: Mapping[str, Any], seed: int | None) -> str:
    return to_json([sorted(varied.items()), seed])


def has_ended(trial: Trial, record: TrialRecord, directory: Path) -> bool:
    """Return whether a trial has reached its ``stop``, which may have changed since, by the last row in ``directory``.

    A trial that was killed right after its last row has also ended, though ``run.json`` does not say so.
    """
    row = last_row(directory)
    if row is None:
        return record.status is Status.TERMINATED
    is_over = record.status in (Status.TERMINATED, Status.RUNNING, Status.PENDING)
    return is_over and ended_by(trial.experiment.stop, row)


def settle(search: Search, past: Restored, directory: RunDirectory) -> None:
    """Carry out open decisions of a killed sweep, and queue unfinished trials before new ones."""
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
    """Copy the checkpoint from which a trial is to continue, unless only its start is missing."""
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
    """Record the row in a trial's newest checkpoint, if the sweep was killed before it was recorded."""
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
