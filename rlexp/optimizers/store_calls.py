"""StoreCalls: batches on their way into the replay shards, and which shard gets which."""

from __future__ import annotations

import numpy as np

from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.replay.shard import ReplayShard
from rlexp.rollout.source import Sample
from rlexp.task_pool import Actor, Lane, TaskPool


class StoreCalls:
    """Deals batches to shards at random, each with an equal share of the depth: a silent one fills only its own."""

    def __init__(self, pool: TaskPool, shards: ReplayShards, depth: int, rng: np.random.Generator) -> None:
        """About ``depth`` calls are in flight at most."""
        self.lane = Lane(pool)
        self._shards = shards
        self._share = -(-depth // len(shards))
        self._rng = rng

    @property
    def has_room(self) -> bool:
        """Whether a shard takes more rows."""
        return any(map(self._is_open, self._shards))

    def store(self, sample: Sample) -> None:
        """Send a batch with rows to the shard that it was written for, or to one that takes more."""
        shard = self._any_shard() if sample.info.shard is None else self._shards[sample.info.shard]
        self.lane.submit(shard, ReplayShard.add_batch, sample.batch)
        self._shards.feed(shard)

    def _any_shard(self) -> Actor[ReplayShard]:
        shard = self._shards[int(self._rng.integers(len(self._shards)))]
        if self._is_open(shard):
            return shard
        return min(filter(self._is_open, self._shards), key=self.lane.in_flight, default=shard)

    def _is_open(self, shard: Actor[ReplayShard]) -> bool:
        return self.lane.in_flight(shard) < self._share and not self._shards.is_silent(shard)
