"""Pruning: the checkpoints of a run that has ended are removed, but for the newest and the best of each trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlexp.checkpoint import list_checkpoints, remove_checkpoint
from rlexp.errors import ResumeError
from rlexp.files import size_below
from rlexp.processes.locks import RunLock, in_use, is_in_use
from rlexp.runs.checkpoints import superseded
from rlexp.runs.run_record import is_in_run, read_run_record


@dataclass(frozen=True)
class Superseded:
    """What a run has and does not need."""

    run: Path
    checkpoints: tuple[Path, ...]
    num_checkpoints: int
    """Of all trials together, those that are kept too."""
    num_bytes: int
    """Of ``checkpoints``."""


def superseded_in(run: Path, newest: int) -> Superseded:
    """Return the checkpoints that are neither among the ``newest`` of their trial nor its best one.

    Raises ResumeError where ``run`` is no run, is in use, or has a link in place of a trial or a checkpoint.
    """
    found = _superseded_in(run, newest)
    if is_in_use(run):
        raise in_use(run)
    return found


def prune(run: Path, newest: int) -> Superseded:
    """Remove what :func:`superseded_in` returns; raises as it does, and where something cannot be removed."""
    superseded_in(run, newest)  # no lock is written into what is no run
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
