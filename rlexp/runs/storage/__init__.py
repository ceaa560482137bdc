"""Storage: a second place for the checkpoints of a run, named by a URL that ``pyarrow.fs`` opens.

Checkpoints are copied there from the run's own directory, by the command that trains, and fetched from there where
the directory has none any more. A copy counts once it has its manifest, which is written last.
"""

from rlexp.runs.storage.copies import CheckpointCopies
from rlexp.runs.storage.fetching import fetch_missing, fetched_checkpoint, folder_of, unmasked
from rlexp.runs.storage.place import check_storage

__all__ = ["CheckpointCopies", "check_storage", "fetch_missing", "fetched_checkpoint", "folder_of", "unmasked"]
