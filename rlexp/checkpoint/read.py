"""Reading a checkpoint: first every size and hash, then the arrays; nothing in it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlexp.checkpoint.array_file import read_arrays
from rlexp.checkpoint.manifest import ARRAYS_SUFFIX, STATE, verify_checkpoint
from rlexp.errors import DamagedCheckpointError
from rlexp.json_file import read_json


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint held; every byte of it matched its manifest."""

    path: Path
    sequence: int
    """The training iteration after which it was written: the order of checkpoints, whatever the clocks said."""
    arrays: dict[str, dict[str, NDArray[Any]]]
    """Groups of arrays, read-only and still in their files: each page is read when it is used."""
    state: dict[str, Any]
    metadata: dict[str, Any]


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checkpoint at ``path``, then open all of it; raises CheckpointError as verify_checkpoint does."""
    manifest = verify_checkpoint(path)
    groups = [name.removesuffix(ARRAYS_SUFFIX) for name in manifest.files if name != STATE]
    try:
        arrays = {group: read_arrays(path / f"{group}{ARRAYS_SUFFIX}") for group in groups}
        state = read_json(path / STATE)
    except (OSError, ValueError, RecursionError) as error:
        # The hashes matched, so this is no accident of the disk: somebody put another kind of file there.
        raise DamagedCheckpointError(path, f"not the contents of a checkpoint: {error}") from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(path, f"not the contents of a checkpoint: {STATE} holds no state")
    return Checkpoint(path, manifest.sequence, arrays, state, manifest.metadata)
