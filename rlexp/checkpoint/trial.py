"""The checkpoints of one trial: their names and order, the newest good one, and which are kept."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from rlexp.checkpoint.manifest import Manifest, verify_checkpoint
from rlexp.errors import CheckpointError, DamagedCheckpointError

_NAME: Final = re.compile(r"checkpoint_(\d{6,})")
# Seen only after a crash in the instant between two renames: the old checkpoint of an iteration that was written again.
_REPLACED: Final = ".replaced"


def checkpoint_directory(trial_directory: Path, iteration: int) -> Path:
    """Return where the checkpoint of a training iteration belongs."""
    return trial_directory / f"checkpoint_{iteration:06d}"


def iteration_of(checkpoint: Path) -> int:
    """Return the training iteration in a checkpoint's name; raises ValueError where it has none."""
    match = _NAME.fullmatch(checkpoint.name.removesuffix(_REPLACED))
    if match is None:
        raise ValueError(f"a checkpoint is called checkpoint_ and six digits, not {checkpoint.name!r}")
    return int(match[1])


def list_checkpoints(trial_directory: Path) -> list[Path]:
    """Return the checkpoints of a trial, newest iteration first, good or not; interrupted writes are none."""
    found = [path for path in _directories(trial_directory) if _NAME.fullmatch(path.name.removesuffix(_REPLACED))]
    return sorted(found, key=lambda path: (iteration_of(path), path.suffix != _REPLACED), reverse=True)


def newest_checkpoint(trial_directory: Path) -> Path | None:
    """Return the newest checkpoint that verifies, or None where there is none at all; raises as ``newest_manifest``."""
    found = newest_manifest(trial_directory)
    return None if found is None else found[0]


def newest_manifest(trial_directory: Path) -> tuple[Path, Manifest] | None:
    """Return the newest checkpoint that verifies, and its manifest, or None where there is none at all.

    Raises the newest one's CheckpointError when every checkpoint is damaged, and that of one that is not
    damaged but of another format: to start again from less than there is must be somebody's decision.
    """
    first_error: CheckpointError | None = None
    for path in list_checkpoints(trial_directory):
        try:
            return path, verify_checkpoint(path)
        except DamagedCheckpointError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return None


def newest_with_damaged_aside(trial_directory: Path) -> tuple[Path | None, list[str]]:
    """Return what ``newest_checkpoint`` does, with damaged ones that are newer renamed, and a sentence about each.

    One of another format stays: that error is raised, since going on from an older one would lose it. Only the
    one writer of a trial may call this.
    """
    newest = newest_checkpoint(trial_directory)
    said = []
    for path in list_checkpoints(trial_directory):
        if path == newest:
            break
        try:
            verify_checkpoint(path)
        except DamagedCheckpointError as error:
            said.append(f"{path.name} is damaged ({error.what}), kept as {set_aside(path).name}")
    return newest, said


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint to ``*.damaged`` (with a number if need be) so that nobody tries it again."""
    target = checkpoint.with_name(f"{checkpoint.name}.damaged")
    number = 2
    while target.exists():
        target = checkpoint.with_name(f"{checkpoint.name}.damaged-{number}")
        number += 1
    return checkpoint.rename(target)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint; an interrupted deletion leaves no half of it under its good name."""
    shutil.rmtree(path.rename(path.with_name(f".{path.name}.removing")))


def remove_leftovers(trial_directory: Path) -> None:
    """Remove what interrupted writes and deletions left; only the one writer of a trial may call this."""
    for path in _directories(trial_directory):
        unfinished = path.name.startswith(".checkpoint_") and path.suffix in (".writing", ".removing")
        superseded = path.suffix == _REPLACED and path.with_suffix("").is_dir()
        if unfinished or superseded:
            shutil.rmtree(path, ignore_errors=True)


def _directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
