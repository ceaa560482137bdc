"""How experience is kept and drawn: storage, sum tree, samplers, the shard of a run, and buffers for other programs.

The buffers are a library for training loops of your own, in any framework: see docs/replay.md. Importing this package
loads NumPy and nothing else.
"""

from rlexp.replay.buffers import PrioritizedReplayBuffer, ReplayBuffer
from rlexp.replay.columns import NStepConfig, NStepFold
from rlexp.replay.shard import ReplayConfig, ReplayShard, ShardStats, split_evenly
from rlexp.replay.shared_buffers import ReplayWriter, SharedPrioritizedReplayBuffer

__all__ = [
    "NStepConfig",
    "NStepFold",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayConfig",
    "ReplayShard",
    "ReplayWriter",
    "ShardStats",
    "SharedPrioritizedReplayBuffer",
    "split_evenly",
]
