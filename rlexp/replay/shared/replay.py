"""SharedReplay: the memory that a trial's workers share with its replay shards."""

from __future__ import annotations

from rlexp.replay.shared.rings import RingSizes
from rlexp.replay.shared.rows import SharedRows
from rlexp.replay.shared.segment import Segment
from rlexp.replay.shared.writer import SharedRowWriter


class SharedReplay:
    """One segment for each shard, with a ring for each worker; the agent makes it in the learner's process."""

    def __init__(self, num_shards: int, sizes: RingSizes) -> None:
        """Take no memory yet; raises ResourceError where the system has none to share."""
        self._segments = [Segment.create() for _ in range(num_shards)]
        self._sizes = sizes

    def rows(self, shard: int) -> SharedRows:
        """Return the rows of a shard, once: they have one reader."""
        return SharedRows(self._segments[shard], self._sizes)

    def writer(self, ring: int, seed: int) -> SharedRowWriter:
        """Return what worker ``ring`` writes with, to be sent to its process; ``seed`` deals batches to shards."""
        return SharedRowWriter([segment.handle for segment in self._segments], self._sizes, ring, seed)
