"""The checkpoints of one trial: named, found, removed, and written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlexp.checkpoint.array_file import TYPES, write_arrays
from rlexp.checkpoint.contents import ARRAYS_SUFFIX, GROUP_NAME, STATE, Manifest, verify_checkpoint, write_manifest
from rlexp.checkpoint.state_codec import AnyArray, num_bytes
from rlexp.errors import CheckpointError, DamagedCheckpointError, RlexpError
from rlexp.files import sync

_NAME: Final = re.compile(r"checkpoint_(\d{6,})")
# Seen only after a crash in the instant between two renames: the old checkpoint of an iteration that was written again.
_REPLACED: Final = ".replaced"
ArrayGroups = Mapping[str, Mapping[str, AnyArray]]


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
    """Rename a damaged checkpoint to ``*.damaged`` (with a number if need be) so that it is not tried again."""
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


def write_checkpoint(
    directory: Path, arrays: ArrayGroups, state: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Path:
    """Write a checkpoint that is either complete at ``directory`` or not there at all; an older one there is replaced.

    ``arrays`` maps group to name to array (bool, integer or float, any shape; lazy ones are read as they
    are written); ``state`` is JSON whose numbers are kept to the last digit; ``metadata`` is for people and may
    lose NaN to null.
    Raises ValueError or TypeError, before anything is written, for a name, dtype or state that
    cannot be stored, and RlexpError when the disk refuses: then nothing of this checkpoint is left
    and the earlier ones are untouched. What reading a lazy array raises passes, with nothing left either.
    """
    sequence = iteration_of(directory)
    _refuse_unstorable(arrays)
    state_text = json.dumps(state)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.writing")
    try:
        remove_leftovers(directory.parent)
        temporary.mkdir()
        for group, named in arrays.items():
            write_arrays(temporary / f"{group}{ARRAYS_SUFFIX}", named)
        (temporary / STATE).write_text(state_text, encoding="utf-8")
        write_manifest(temporary, sequence, metadata)
        publish_checkpoint(temporary, directory)
    except OSError as error:
        raise _write_error(directory, arrays, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _refuse_unstorable(arrays: ArrayGroups) -> None:
    for group, named in arrays.items():
        if not GROUP_NAME.fullmatch(group):
            raise ValueError(f"not a name for a group of arrays: {group!r}")
        for name, array in named.items():
            if array.dtype.name not in TYPES:
                raise ValueError(f"{group}/{name} has dtype {array.dtype}, which a checkpoint cannot hold")


def publish_checkpoint(temporary: Path, directory: Path) -> None:
    """Give a checkpoint that is whole, on the disk and hidden beside ``directory`` that name; replaces an older one."""
    if directory.exists():
        replaced = directory.with_name(f"{directory.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        directory.rename(replaced)
    temporary.rename(directory)
    sync(directory.parent)
    remove_leftovers(directory.parent)


def _write_error(directory: Path, arrays: ArrayGroups, error: OSError) -> RlexpError:
    needed = sum(num_bytes(array) for named in arrays.values() for array in named.values()) / 1e6
    return RlexpError(
        f"cannot write checkpoint {directory}: {error.strerror or error} (it needs {needed:.1f} MB)",
        "earlier checkpoints are untouched; when the disk works again, rlexp resume continues from the newest",
    )
