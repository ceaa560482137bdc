"""How experience is kept and drawn: storage, sum tree, buffers, and the shard that puts them together; NumPy only."""

from rlexp.replay.shard import ReplayConfig, ReplayShard, ShardStats, split_evenly

__all__ = ["ReplayConfig", "ReplayShard", "ShardStats", "split_evenly"]
