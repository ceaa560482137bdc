"""Checkpoints: directories of arrays and counters that appear whole or not at all, and that can hold no code.

A checkpoint is one safetensors file per group of arrays, ``state.json`` for everything that is not
an array, and ``manifest.json`` with the size and SHA-256 of each; the manifest is written last, the
directory gets its name after that. Agents write and read them; Tune only learns where they are.
"""

from rlexp.runs.checkpoints.contents import Checkpoint, Manifest, read_checkpoint, read_state, verify_checkpoint
from rlexp.runs.checkpoints.trial import (
    checkpoint_directory,
    iteration_of_packed,
    list_checkpoints,
    newest_checkpoint,
    newest_manifest,
    newest_with_damaged_aside,
    pack_checkpoint,
    remove_checkpoint,
    set_aside,
    unpack_checkpoint,
    write_checkpoint,
)

__all__ = [
    "Checkpoint",
    "Manifest",
    "checkpoint_directory",
    "iteration_of_packed",
    "list_checkpoints",
    "newest_checkpoint",
    "newest_manifest",
    "newest_with_damaged_aside",
    "pack_checkpoint",
    "read_checkpoint",
    "read_state",
    "remove_checkpoint",
    "set_aside",
    "unpack_checkpoint",
    "verify_checkpoint",
    "write_checkpoint",
]
