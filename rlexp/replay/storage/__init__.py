"""Where the columns of replayed rows lie: one protocol, and one file for each kind of memory."""

from rlexp.replay.storage.array import ArrayStorage
from rlexp.replay.storage.compressed import CompressedStorage
from rlexp.replay.storage.storage import Storage

__all__ = ["ArrayStorage", "CompressedStorage", "Storage"]
