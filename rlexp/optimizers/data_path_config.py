"""The settings of Ape-X's data path."""

from __future__ import annotations

from dataclasses import dataclass

from rlexp.schedules import LinearSchedule


@dataclass(frozen=True)
class DataPathConfig:
    """Settings of the data path; each depth bounds memory and staleness on one edge of the data path."""

    replay_depth: int
    """Replay calls in flight per shard."""
    store_depth: int
    """Batches on their way into the shards; when so many are, in equal shares, no new samples are taken."""
    beta: LinearSchedule
    """The importance-sampling exponent over trained steps."""
    reports_timing: bool = False
    """Whether the figures have the seconds of each phase."""
    min_weight_publish_s: float | None = None
    """Seconds between two versions of the weights that are published, at least; None: see ``WeightPublisher``."""
    num_gatherers: int = 0
    """Gatherers between workers and shards."""
