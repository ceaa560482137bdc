"""From a path that a person types to the checkpoint that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlexp.checkpoint import newest_checkpoint
from rlexp.checkpoint.manifest import MANIFEST
from rlexp.config.keys.trial import Trial
from rlexp.errors import CheckpointError, ResumeError
from rlexp.runs.run_record import RUN_FILE, SEE_LS, TrialRecord, hint_to_runs, is_in_run, read_run_record


def find_checkpoint(path: Path) -> Path:
    """Return ``path`` if it is a checkpoint, else the best one of the trial or run that lies there.

    The best checkpoint is the one whose trial had the highest mean reward when it was written. Raises
    CheckpointError where there is none, and ResumeError where ``path`` is nothing of ours.
    """
    if (path / MANIFEST).is_file():
        return path
    if (path / RUN_FILE).is_file():
        return _best(path, read_run_record(path).trials)
    if (path.parent / RUN_FILE).is_file():
        trials = [trial for trial in read_run_record(path.parent).trials if trial.directory == path.name]
        if trials:
            return _best(path.parent, trials)
    if not path.exists():
        raise ResumeError(f"path {path} does not exist", SEE_LS)
    raise ResumeError(f"{path} is neither a run, nor a trial, nor a checkpoint", hint_to_runs(path))


def starting_point(trial: Trial) -> Path | None:
    """Return the checkpoint that ``restore`` means, absolute, or None; raises as ``find_checkpoint`` does."""
    restore = trial.experiment.restore
    return None if restore is None else find_checkpoint(Path(restore).expanduser().resolve())


def _best(run: Path, trials: list[TrialRecord]) -> Path:
    for trial in trials:
        _refuse_elsewhere(run, trial)
    known = [trial for trial in trials if trial.best_checkpoint is not None]
    if known:
        best = max(known, key=lambda trial: _reward(trial.best_checkpoint_reward))
        return run / str(best.best_checkpoint)
    for trial in trials:  # a run that was killed may have one that run.json does not know
        newest = newest_checkpoint(run / trial.directory)
        if newest is not None:
            return newest
    raise CheckpointError(
        f"{run} has no checkpoint", "trials write one at their end, unless checkpoint_at_end is false; run it again"
    )


def _refuse_elsewhere(run: Path, trial: TrialRecord) -> None:
    """Raise ResumeError where a trial or its best checkpoint would not lie in the run: it may be a stranger's."""
    if not is_in_run(trial.directory):
        raise ResumeError(f"{run / RUN_FILE} points elsewhere: {trial.directory!r} is not the directory of a trial")
    if trial.best_checkpoint is None:
        return
    directory, _, name = str(trial.best_checkpoint).partition("/")
    if directory != trial.directory or not is_in_run(name):
        raise ResumeError(
            f"{run / RUN_FILE} points elsewhere: {trial.best_checkpoint!r} is not a checkpoint of its trial"
        )


def _reward(reward: Any) -> float:
    return reward if isinstance(reward, int | float) else float("-inf")
