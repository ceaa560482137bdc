"""What replay holds goes into a checkpoint and comes back without a second replay in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlexp import states
from rlexp.agents.off_policy_agent import join_shard_states, split_shard_states
from rlexp.replay import ReplayShard
from rlexp.runs.checkpoints import read_checkpoint, write_checkpoint
from rlexp.sample_batch import ACTIONS, FRAME_IDS, NEW_FRAME_IDS, NEW_OBS, OBS, FrameRows, SampleBatch
from tests.unit.replay.test_replay_shard import CONFIG

MIB = 1 << 20
PIECE = MIB // 4
LITTLE = 2 * MIB
"""Beside the replay: some pieces, and what renewing the sums of the tree takes."""
FRAME = (64, 64, 1)


def vectors(first: int, count: int) -> SampleBatch:
    obs = np.random.default_rng(first).random((2, count, 30), np.float32)
    return SampleBatch({OBS: obs[0], NEW_OBS: obs[1], ACTIONS: np.arange(first, first + count)})


def stacks(first: int, count: int) -> FrameRows:
    """Rows of stacks of two frames, half of whose pixels are noise that nothing compresses."""
    frames = np.random.default_rng(first).integers(0, 256, (count + 2, *FRAME), np.uint8)
    frames[:, 32:] = 0
    places = np.arange(count, dtype=np.int32)[:, None] + np.arange(2, dtype=np.int32)
    columns = {FRAME_IDS: places, NEW_FRAME_IDS: places + np.int32(1), ACTIONS: np.arange(count)}
    return FrameRows(SampleBatch(columns), frames, np.arange(first, first + count + 2))


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Fail where the body takes, at any moment, more memory beyond what it leaves behind."""
    tracemalloc.start()
    yield
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - after <= more


@pytest.mark.parametrize(
    ("kind", "rows", "storage"),
    [("vectors", 80_000, "frames"), ("stacks", 5000, "frames"), ("stacks", 8000, "compressed_frames")],
)
def test_checkpoint_of_replay_needs_little_extra_memory(
    kind: str, rows: int, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "PIECE_BYTES", PIECE)
    config = replace(CONFIG, capacity=rows, storage=storage)
    shard, again = (ReplayShard(config, seed) for seed in (1, 2))
    for first in range(0, rows, 500):
        batch = vectors(first, 500) if kind == "vectors" else stacks(first, 500)
        shard.add_batch(batch)
    errors = np.linspace(0, 9, rows)
    shard.update_priorities(np.arange(rows), errors)
    assert shard.stats().nbytes > 16 * MIB
    with at_most(LITTLE):
        arrays, rest = split_shard_states([shard.state()])
        path = write_checkpoint(tmp_path / "checkpoint_000001", arrays, {"replay": rest}, {})
        del arrays, rest
    with at_most(LITTLE):
        checkpoint = read_checkpoint(path)
        again.load(join_shard_states(checkpoint.arrays, checkpoint.state["replay"])[0])
    batches = [each.replay() for each in (shard, again)]
    assert batches[0] is not None
    assert batches[1] is not None
    for name, column in batches[0].columns.items():
        np.testing.assert_array_equal(batches[1][name], column)
