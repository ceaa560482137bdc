"""The checkpoints of a run: the one that a path means, the kept ones of a trial, and copies from another trial.

A run that has ended can be pruned to the newest and the best checkpoint of each trial.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rlexp.config.keys.fields import AUTO
from rlexp.config.keys.trial import Trial
from rlexp.errors import CheckpointError, ResumeError
from rlexp.files import size_below
from rlexp.processes.locks import RUN_FILE, RunLock, in_use, is_in_use
from rlexp.runs.checkpoint_contents import MANIFEST, Manifest, looks_whole, read_manifest, verify_checkpoint
from rlexp.runs.checkpoints import (
    hidden_folder,
    iteration_of,
    list_checkpoints,
    newest_checkpoint,
    publish_verified,
    remove_checkpoint,
)
from rlexp.runs.directories import refuse_foreign, restored
from rlexp.runs.record import (
    EVALUATED_REWARD,
    RunRecord,
    TrialRecord,
    hint_to_runs,
    is_in_run,
    looks_like_run,
    rank_of_checkpoint,
    read_run_record,
)
from rlexp.runs.rows import flatten
from rlexp.runs.storage import fetched_checkpoint, unmasked
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, TrustedCode

KeptNumber = int | Literal["auto"]
LOWER_IS_BETTER = "min-"
_COUNTERS: Final = frozenset({"training_iteration", "timesteps_total", "time_total_s", "episodes_total"})
NEWEST_KEPT: Final = 3
"""Default number: if the newest is damaged, a trial continues from the previous one."""


def find_checkpoint(path: Path, trusted: TrustedCode = NOTHING_ALLOWED) -> Path:
    """Return ``path`` if it is a checkpoint, else the best checkpoint of the trial or run there.

    The best checkpoint has the highest mean reward in its evaluation, or without one in the training before it. If that
    was removed, the newest one of its trial is returned. If a trial has none left, they come from its storage, if that
    is this user's or in ``trusted``. Raises CheckpointError if there is none, ResumeError if ``path`` does not belong
    to rlexp, ResourceError if a storage does not answer.
    """
    try:
        if (path / MANIFEST).is_file():
            return path
    except OSError as error:
        raise ResumeError(f"{path} cannot be read: {error.strerror}") from error
    if looks_like_run(path):
        record = read_run_record(path)
        return _best(path, record, record.trials, trusted)
    if looks_like_run(path.parent):
        record = read_run_record(path.parent)
        trials = [trial for trial in record.trials if trial.directory == path.name]
        if trials:
            return _best(path.parent, record, trials, trusted)
    if not path.exists():
        raise ResumeError(f"path {path} does not exist", hint_to_runs(path))
    raise ResumeError(f"{path} is neither a run, nor a trial, nor a checkpoint", hint_to_runs(path))


def starting_point(trial: Trial) -> Path | None:
    """Return the checkpoint that ``restore`` means, absolute, or None.

    Raises what ``find_checkpoint`` raises, and ResumeError for a checkpoint at which the trial would stop.
    """
    path = restored(trial)
    if path is None:
        return None
    try:
        found = find_checkpoint(path)
        _refuse_past_stop(found, trial.experiment.stop)
    except ResumeError as error:
        raise type(error)(f"restore: {error.message}", error.hint) from error
    return found


def _refuse_past_stop(checkpoint: Path, stop: Mapping[str, float]) -> None:
    """Raise ResumeError if a counter of ``checkpoint``, which continues from there, has reached its stop."""
    row = _metrics(read_manifest(checkpoint))
    for metric in sorted(_COUNTERS & stop.keys()):
        reached = row.get(metric)
        if isinstance(reached, int | float) and reached >= stop[metric]:
            message = f"{checkpoint} has {metric} {reached:,.10g}, and stop.{metric} is {stop[metric]:,.10g}"
            raise ResumeError(message, f"counters continue: write a larger stop.{metric}")


def _best(run: Path, record: RunRecord, trials: list[TrialRecord], trusted: TrustedCode) -> Path:
    for trial in trials:
        _refuse_elsewhere(run, trial)
    known = [trial for trial in trials if trial.best_checkpoint is not None]
    for trial in sorted(known, key=lambda trial: trial.rank_of_checkpoint, reverse=True):
        best = run / str(trial.best_checkpoint)
        found = best if best.is_dir() else newest_checkpoint(run / trial.directory)  # keep_checkpoints_num removes some
        found = found or _from_storage(run, record, trial, trusted)
        if found is not None:
            return found
    for trial in trials:  # a killed run may have one that run.json does not know
        newest = newest_checkpoint(run / trial.directory)
        if newest is not None:
            return newest
    raise CheckpointError(
        f"{run} has no checkpoint", "trials write one at their end, unless checkpoint_at_end is false; run it again"
    )


def _from_storage(run: Path, record: RunRecord, trial: TrialRecord, trusted: TrustedCode) -> Path | None:
    """Return the best or newest checkpoint of a trial from its storage; None if that has none."""
    if trial.storage is None:
        return None
    refuse_foreign(run / RUN_FILE)  # it tells which server is asked
    trusted.check_storage(unmasked(run, trial.storage), run, trial.storage)
    best = Path(str(trial.best_checkpoint)).name
    return fetched_checkpoint(run, record, trial, best) or fetched_checkpoint(run, record, trial, None)


def _refuse_elsewhere(run: Path, trial: TrialRecord) -> None:
    """Raise ResumeError if a trial or its best checkpoint is outside of the run, as a stranger may have written it."""
    if not is_in_run(trial.directory):
        raise ResumeError(f"{run / RUN_FILE} points elsewhere: {trial.directory!r} is not the directory of a trial")
    if trial.best_checkpoint is None:
        return
    directory, _, name = str(trial.best_checkpoint).partition("/")
    if directory != trial.directory or not is_in_run(name):
        raise ResumeError(
            f"{run / RUN_FILE} points elsewhere: {trial.best_checkpoint!r} is not a checkpoint of its trial"
        )


def keep_best(trial_directory: Path, count: KeptNumber, score_attribute: str) -> None:
    """Delete all but the ``count`` best checkpoints by their value of a metric (``min-x``: lower is better).

    The newest is never deleted: a trial that is started again continues from it. ``auto``: see :func:`superseded`.
    """
    if count == AUTO:
        for path in superseded(trial_directory):
            remove_checkpoint(path)
        return
    newest, *older = list_checkpoints(trial_directory)
    ranked = sorted([newest, *older], key=lambda path: _score(path, score_attribute), reverse=True)
    for path in ranked[count:]:
        if path != newest:
            remove_checkpoint(path)


def superseded(trial_directory: Path, newest: int = NEWEST_KEPT) -> list[Path]:
    """Return the checkpoints of a trial that are neither among the newest nor the best one, which ``evaluate`` plays.

    Damaged ones are never returned, and do not count, as the trial continues from whole ones. Only manifests and file
    sizes are read, as replay may have many GB.
    """
    ordered = list_checkpoints(trial_directory)
    whole = [path for path in ordered if looks_whole(path)]
    if len(whole) <= newest:
        return []
    best = max(whole, key=lambda path: (_rank(path), iteration_of(path)))
    return [path for path in ordered[ordered.index(whole[newest - 1]) + 1 :] if path != best]


def _rank(checkpoint: Path) -> float:
    try:
        values = _metrics(read_manifest(checkpoint))
    except CheckpointError:
        return -math.inf
    return rank_of_checkpoint(*(values.get(name) for name in (EVALUATED_REWARD, "episode_reward_mean")))


def _score(checkpoint: Path, attribute: str) -> float:
    """Return a score that is higher for better checkpoints; the lowest without the metric, or for a damaged one."""
    name = attribute.removeprefix(LOWER_IS_BETTER)
    try:
        value = float(_metrics(verify_checkpoint(checkpoint)).get(name, math.nan))
    except (CheckpointError, TypeError, ValueError, OverflowError):
        return -math.inf
    if math.isnan(value):
        return -math.inf
    return -value if attribute.startswith(LOWER_IS_BETTER) else value


def _metrics(manifest: Manifest) -> dict[str, Any]:
    """Return the row with which a checkpoint was written, by flat names; empty if there is none."""
    metrics = manifest.metadata.get("metrics")
    return flatten(metrics) if isinstance(metrics, dict) else {}


def copy_checkpoint(checkpoint: Path, trial_directory: Path, once_whole: Callable[[], object] | None = None) -> Path:
    """Copy another trial's checkpoint to ``trial_directory`` as the newest one; return the copy.

    The trial's own checkpoints of this or a later iteration are removed, as it does not continue from them.
    ``once_whole`` is called before that. Raises CheckpointError, with nothing changed, if the copy is not whole, as the
    other trial may be removing it.
    """

    def make_way(manifest: Manifest) -> None:
        if once_whole is not None:
            once_whole()
        for own in list_checkpoints(trial_directory):
            if own.name >= checkpoint.name:
                remove_checkpoint(own)

    with hidden_folder(trial_directory / checkpoint.name) as hidden:
        shutil.copytree(checkpoint, hidden, dirs_exist_ok=True)
        return publish_verified(hidden, trial_directory / checkpoint.name, make_way)


@dataclass(frozen=True)
class Superseded:
    """The checkpoints that a run does not need."""

    run: Path
    checkpoints: tuple[Path, ...]
    num_checkpoints: int
    """All checkpoints of all trials, with the kept ones."""
    num_bytes: int
    """Bytes of ``checkpoints``."""


def superseded_in(run: Path, newest: int) -> Superseded:
    """Return the checkpoints that are neither among the ``newest`` of their trial nor its best one.

    Raises ResumeError if ``run`` is not a run, is in use, or has a link in place of a trial or a checkpoint.
    """
    found = _superseded_in(run, newest)
    if is_in_use(run):
        raise in_use(run)
    return found


def prune(run: Path, newest: int) -> Superseded:
    """Remove what :func:`superseded_in` returns; raises as it does, and if something cannot be removed."""
    superseded_in(run, newest)  # a folder that is not a run gets no lock
    try:
        with RunLock(run):
            found = _superseded_in(run, newest)
            for path in found.checkpoints:
                remove_checkpoint(path)
    except OSError as error:
        raise ResumeError(f"cannot remove checkpoints of {run}: {error.strerror}") from error
    return found


def _superseded_in(run: Path, newest: int) -> Superseded:
    record = read_run_record(run)
    folders = [run / trial.directory for trial in record.trials if is_in_run(trial.directory)]
    for folder in folders:
        _refuse_link(folder, run)
    everything = [path for folder in folders for path in list_checkpoints(folder)]
    for path in everything:
        _refuse_link(path, run)
    best = {run / str(trial.best_checkpoint) for trial in record.trials}
    found = [path for folder in folders for path in superseded(folder, newest) if path not in best]
    return Superseded(run, tuple(found), len(everything), sum(size_below(path)[0] for path in found))


def _refuse_link(path: Path, run: Path) -> None:
    if path.is_symlink():
        raise ResumeError(f"{path} is a link: nothing of {run} is removed", "remove the link, or leave the run out")
