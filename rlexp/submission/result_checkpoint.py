"""The checkpoint that a trainer has left on a board, as one of a run of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rlexp.checkpoint import publish_checkpoint, verify_checkpoint
from rlexp.checkpoint.contents import MANIFEST, write_manifest
from rlexp.checkpoint.packed import unpack_checkpoint
from rlexp.errors import CheckpointError
from rlexp.runs.last_row import checkpoint_row
from rlexp.submission.experiment_task import SubmittedTask
from rlexp.transport.blobs import MAX_BLOB_BYTES


def keep_result(content: bytes, folder: Path, submitted: SubmittedTask, key: bytes) -> Path:
    """Write a packed checkpoint into the directory of its trial and return it; raises CheckpointError.

    It says of itself what was submitted here: the env and modules that ``rlexp evaluate`` imports for it are never
    those that a trainer names.
    """
    hidden = folder / f".result.{os.getpid()}.writing"
    try:
        received = unpack_checkpoint(content, hidden, key, MAX_BLOB_BYTES)
        manifest = verify_checkpoint(received)
        row = checkpoint_row(received, manifest.metadata)
        experiment, modules = submitted.trial.experiment, submitted.plan.modules
        metadata = {
            "experiment": experiment.model_dump(mode="json"),
            "imports": list(modules.imports),
            "module_folders": list(modules.folders),
            "metrics": None if row is None else {**row, "trial_name": submitted.trial.name},
        }
        (received / MANIFEST).unlink()
        write_manifest(received, manifest.sequence, metadata)
        kept = folder / received.name
        publish_checkpoint(received, kept)
        return kept
    except OSError as error:
        raise CheckpointError(f"it cannot be written to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
