"""Where the columns of replayed rows lie: in arrays, and their frames in a pool, plainly or compressed."""

from rlexp.replay.storage.array import ArrayStorage
from rlexp.replay.storage.frames import FrameStorage

__all__ = ["ArrayStorage", "FrameStorage"]
