"""Taking over another trial's checkpoint: afterwards a trial's directory is as if it had written it itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from rlexp.checkpoint import list_checkpoints, remove_checkpoint, verify_checkpoint


def adopt_checkpoint(checkpoint: Path, trial_directory: Path) -> Path:
    """Copy another trial's checkpoint to ``trial_directory``, where it becomes the newest; return the copy.

    Checkpoints of the trial's own that are as far or farther are removed: it does not go on from them. Raises
    CheckpointError, with nothing changed, where the copy is not whole: the other trial may be removing it.
    """
    return put_in_place(copied_checkpoint(checkpoint, trial_directory), trial_directory / checkpoint.name)


def copied_checkpoint(checkpoint: Path, trial_directory: Path) -> Path:
    """Return a hidden copy, the first half of ``adopt_checkpoint``: the trial does not go on from it yet."""
    copy = trial_directory / f".{checkpoint.name}.writing"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()  # copytree would make the trial's directory too, where somebody deleted it
    try:
        shutil.copytree(checkpoint, copy, dirs_exist_ok=True)
        verify_checkpoint(copy)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy


def put_in_place(copy: Path, target: Path) -> Path:
    """Let a hidden copy be the trial's newest checkpoint, ``target``: the second half of ``adopt_checkpoint``."""
    for own in list_checkpoints(target.parent):
        if own.name >= target.name:
            remove_checkpoint(own)
    return copy.rename(target)
