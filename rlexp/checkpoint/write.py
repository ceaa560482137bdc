"""Writing a checkpoint: everything into a hidden directory, flushed to the disk, then one rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.checkpoint.array_file import TYPES, write_arrays
from rlexp.checkpoint.manifest import ARRAYS_SUFFIX, GROUP_NAME, STATE, write_manifest
from rlexp.checkpoint.state_codec import AnyArray, num_bytes
from rlexp.checkpoint.trial import iteration_of, remove_leftovers
from rlexp.errors import RlexpError
from rlexp.json_file import sync

ArrayGroups = Mapping[str, Mapping[str, AnyArray]]


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
        _publish(temporary, directory)
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


def _publish(temporary: Path, directory: Path) -> None:
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
