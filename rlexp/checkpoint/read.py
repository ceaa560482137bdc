"""Reading a checkpoint: first every size and hash, then the arrays; nothing in it is executed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rlexp.checkpoint.manifest import ARRAYS_SUFFIX, STATE, damaged, verify_checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint held; every byte of it matched its manifest."""

    path: Path
    sequence: int
    """The training iteration after which it was written: the order of checkpoints, whatever the clocks said."""
    arrays: dict[str, dict[str, NDArray[Any]]]
    state: dict[str, Any]
    metadata: dict[str, Any]


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checkpoint at ``path``, then read all of it; raises CheckpointError as verify_checkpoint does."""
    manifest = verify_checkpoint(path)
    groups = [name.removesuffix(ARRAYS_SUFFIX) for name in manifest.files if name != STATE]
    try:
        arrays = {group: load_file(path / f"{group}{ARRAYS_SUFFIX}") for group in groups}
        state = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        # The hashes matched, so this is no accident of the disk: somebody put another kind of file there.
        raise damaged(path, f"not the contents of a checkpoint: {error}") from error
    return Checkpoint(path, manifest.sequence, arrays, state, manifest.metadata)
