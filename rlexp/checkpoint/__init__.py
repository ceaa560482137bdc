"""Checkpoints: directories of arrays and counters that appear whole or not at all, and that can hold no code.

A checkpoint is one safetensors file per group of arrays, ``state.json`` for everything that is not
an array, and ``manifest.json`` with the size and SHA-256 of each; the manifest is written last, the
directory gets its name after that. Agents write and read them; Tune only learns where they are.
"""

from rlexp.checkpoint.manifest import Manifest, verify_checkpoint
from rlexp.checkpoint.ownership import refuse_foreign, refuse_modules_within, run_of
from rlexp.checkpoint.read import Checkpoint, read_checkpoint, read_state
from rlexp.checkpoint.trial import (
    checkpoint_directory,
    list_checkpoints,
    newest_checkpoint,
    newest_manifest,
    newest_with_damaged_aside,
    remove_checkpoint,
    remove_leftovers,
    set_aside,
)
from rlexp.checkpoint.write import write_checkpoint

__all__ = [
    "Checkpoint",
    "Manifest",
    "checkpoint_directory",
    "list_checkpoints",
    "newest_checkpoint",
    "newest_manifest",
    "newest_with_damaged_aside",
    "read_checkpoint",
    "read_state",
    "refuse_foreign",
    "refuse_modules_within",
    "remove_checkpoint",
    "remove_leftovers",
    "run_of",
    "set_aside",
    "verify_checkpoint",
    "write_checkpoint",
]
