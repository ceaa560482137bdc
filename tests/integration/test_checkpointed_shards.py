"""Replay shards in processes of their own: what they hold goes into a checkpoint piece by piece, and comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import states
from rlexp.agents.off_policy_agent import join_shard_states, split_shard_states
from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.errors import CheckpointError
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.replay import ReplayShard
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.sample_batch import ACTIONS, REWARDS, TD_ERRORS, Array, FrameRows
from tests.lab.checkpoints import in_memory
from tests.lab.doubles import REPLAY
from tests.lab.rollout import stacked_rows

CONFIG = replace(REPLAY, capacity=300, train_batch_size=32, storage="compressed_frames")


def placed(pool: RayTaskPool, seed: int) -> ReplayShards:
    def place(index: int, generation: int) -> Actor[ReplayShard]:
        return pool.place(f"replay-{index}", Resources(cpus=0, gpus=0), ReplayShard, CONFIG, seed + index)

    return ReplayShards(pool, place, 2)


def played(first: int, count: int) -> FrameRows:
    """Rows of stacks of two frames, each frame its number all over."""
    numbers = np.arange(first, first + count + 2)
    frames = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None, None], (len(numbers), 32, 32, 1))
    columns: dict[str, Array] = {
        ACTIONS: np.arange(count),
        REWARDS: np.arange(count, dtype=np.float32),
        TD_ERRORS: np.linspace(0, 3, count, dtype=np.float32),
    }
    return stacked_rows(first, frames, columns)


def fill(pool: RayTaskPool, shards: ReplayShards) -> None:
    for index, shard in enumerate(shards):
        for first in range(0, 500, 50):
            pool.get(pool.call(shard, ReplayShard.add_batch, played(1000 * index + first, 50)), 60.0)
        pool.get(pool.call(shard, ReplayShard.replay, 0.5), 60.0)


def told(shards: ReplayShards) -> list[dict[str, Any]]:
    return [in_memory(state) for state in shards.states()]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_shards_in_other_processes_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PIECE_BYTES", 5000)
    pool = RayTaskPool()
    try:
        shards, again = placed(pool, seed=1), placed(pool, seed=7)
        fill(pool, shards)
        arrays, rest = split_shard_states(shards.states())
        checkpoint = read_checkpoint(write_checkpoint(tmp_path / "checkpoint_000001", arrays, {"replay": rest}, {}))
        again.load(join_shard_states(checkpoint.arrays, checkpoint.state["replay"]))
        np.testing.assert_equal(told(again), told(shards))
        for one, other in zip(shards, again, strict=True):
            drawn, drawn_again = (pool.get(pool.call(each, ReplayShard.replay, 0.5), 60.0) for each in (one, other))
            assert drawn is not None
            assert drawn_again is not None
            np.testing.assert_equal(drawn_again.columns, drawn.columns)
        with pytest.raises(CheckpointError, match="capacity 299 does not fit into 300"):
            again.load([{**state, "capacity": 299} for state in told(shards)])
    finally:
        pool.stop()
