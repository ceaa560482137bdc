"""Reading a checkpoint: first every size and hash, then the arrays; nothing in it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlexp.checkpoint.array_file import read_arrays
from rlexp.checkpoint.manifest import ARRAYS_SUFFIX, STATE, verify_checkpoint
from rlexp.errors import CheckpointError, DamagedCheckpointError
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

    def copies(self, group: str) -> dict[str, NDArray[Any]]:
        """Return copies in memory of the arrays of a group, which may be changed; none where there is no such group."""
        return {name: np.array(array) for name, array in self.arrays.get(group, {}).items()}

    def check_numbers(self, *groups: str) -> None:
        """Raise CheckpointError, with the name of the array, where no network can compute with one of some groups.

        It holds NaN or infinity, or numbers so large that their sum overflows.
        """
        for group in groups:
            for name, array in self.arrays.get(group, {}).items():
                problem = _problem(array)
                if problem is not None:
                    raise CheckpointError(
                        f"checkpoint {self.path}: {group}/{name} holds {problem}",
                        "the training diverged, or the file was changed; use an earlier checkpoint",
                    )


def _problem(array: NDArray[Any]) -> str | None:
    """Return what is wrong with the numbers of an array, None where nothing is; reads each number once if so."""
    if not np.issubdtype(array.dtype, np.floating):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.abs(array).sum(dtype=np.result_type(array.dtype, np.float32))
    if np.isfinite(total):
        return None
    count = array.size - np.count_nonzero(np.isfinite(array))
    if count:
        return f"{count:,} numbers of {array.size:,} that are NaN or infinite"
    return f"numbers up to {np.abs(array).max():.3g}, which overflow when they are added"


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checkpoint at ``path``, then open all of it; raises CheckpointError as verify_checkpoint does."""
    manifest = verify_checkpoint(path)
    groups = [name.removesuffix(ARRAYS_SUFFIX) for name in manifest.files if name != STATE]
    try:
        arrays = {group: read_arrays(path / f"{group}{ARRAYS_SUFFIX}") for group in groups}
    except (OSError, ValueError) as error:
        raise _other_contents(path, error) from error
    return Checkpoint(path, manifest.sequence, arrays, read_state(path), manifest.metadata)


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint that was verified; raises DamagedCheckpointError where it holds none."""
    try:
        state = read_json(path / STATE)
    except (OSError, ValueError) as error:
        raise _other_contents(path, error) from error
    if not isinstance(state, dict):
        raise _other_contents(path, f"{STATE} holds no state")
    return state


def _other_contents(path: Path, what: object) -> DamagedCheckpointError:
    """Return the error where all hashes match: somebody has put another kind of file there."""
    return DamagedCheckpointError(path, f"not the contents of a checkpoint: {what}")
