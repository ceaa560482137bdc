"""A shard of replay hands out what was added; it goes into a checkpoint and comes back without a second replay."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import states
from rlexp.agents.off_policy_agent import join_shard_states, split_shard_states
from rlexp.errors import CheckpointError
from rlexp.replay.shard import ReplayShard, ShardStats, split_evenly
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.sample_batch import (
    ACTIONS,
    IMPORTANCE_WEIGHTS,
    KEYS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    FrameRows,
    SampleBatch,
)
from tests.lab.checkpoints import in_memory
from tests.lab.doubles import REPLAY
from tests.lab.rollout import assert_same_batch, stacked_rows

CONFIG = replace(REPLAY, capacity=100, learning_starts=10, train_batch_size=32, alpha=0.5, eps=0.0)


def rows(first: int, count: int, **more: Any) -> SampleBatch:
    numbers = np.arange(first, first + count)
    return SampleBatch({ACTIONS: numbers, REWARDS: numbers.astype(np.float32), **more})


def drawn_from(shard: ReplayShard, beta: float = 0.5) -> SampleBatch:
    batch = shard.replay(beta)
    assert batch is not None
    return batch


def weights(shard: ReplayShard, beta: float) -> dict[int, float]:
    batch = drawn_from(shard, beta)
    return dict(zip(batch[KEYS].tolist(), batch[IMPORTANCE_WEIGHTS].tolist(), strict=True))


def test_shard_replays_after_learning_starts() -> None:
    shard = ReplayShard(replace(CONFIG, capacity=4), seed=0)
    assert shard.add_batch(rows(0, 9)) == 9
    assert shard.replay(0.5) is None
    assert shard.add_batch(rows(9, 1)) == 1  # additions count, though only 4 rows are held
    batch = drawn_from(shard)
    assert list(batch) == [ACTIONS, REWARDS, KEYS, IMPORTANCE_WEIGHTS]
    assert len(batch) == 32
    assert set(batch[ACTIONS].tolist()) == {6, 7, 8, 9}


def test_shard_replay_of_nothing_is_none() -> None:
    shard = ReplayShard(replace(CONFIG, learning_starts=0), seed=0)
    assert shard.replay(0.5) is None
    shard.add_batch(rows(0, 1))
    assert shard.replay(0.5) is not None


def test_shard_turns_td_errors_into_priorities() -> None:
    shard = ReplayShard(replace(CONFIG, learning_starts=3, eps=1.0, train_batch_size=500), seed=0)
    shard.add_batch(rows(0, 3, td_errors=np.array([0.0, -3.0, 15.0], np.float32)))
    batch = drawn_from(shard, beta=1.0)
    assert TD_ERRORS not in batch
    # (abs(delta) + 1)^0.5 = 1, 2, 4
    assert weights(shard, beta=1.0) == pytest.approx({0: 1.0, 1: 0.5, 2: 0.25})
    assert weights(shard, beta=0.5) == pytest.approx({0: 1.0, 1: 0.5**0.5, 2: 0.5})
    shard.update_priorities(np.array([0]), np.array([-8.0]))
    assert weights(shard, beta=1.0) == pytest.approx({0: 2 / 3, 1: 1.0, 2: 0.5})


def test_shard_refuses_td_errors_that_are_not_finite() -> None:
    shard = ReplayShard(CONFIG, seed=0)
    with pytest.raises(ValueError, match="row 1 is nan"):
        shard.add_batch(rows(0, 2, td_errors=np.array([0.0, np.nan], np.float32)))
    assert shard.stats().num_added == 0


def test_shard_stats_count() -> None:
    shard = ReplayShard(replace(CONFIG, capacity=8), seed=0)
    nbytes_without_rows = shard.stats().nbytes
    shard.add_batch(rows(0, 20))
    shard.replay(0.5)
    shard.replay(0.5)
    assert shard.update_priorities(np.array([0, 11, 12, 19]), np.ones(4)) == 2
    stats = shard.stats()
    assert stats == ShardStats(
        size=8, capacity=8, num_added=20, num_sampled=64, num_stale_priorities=2, nbytes=stats.nbytes
    )
    assert stats.nbytes - nbytes_without_rows == 8 * 16  # an int64 and a float32 a row, aligned


def test_shard_uniform_weights_are_one() -> None:
    shard = ReplayShard(replace(CONFIG, prioritized=False), seed=0)
    shard.add_batch(rows(0, 20, td_errors=np.arange(20.0)))
    shard.add_batch(rows(20, 20))
    batch = drawn_from(shard)
    assert (batch[IMPORTANCE_WEIGHTS] == 1).all()
    assert shard.update_priorities(batch[KEYS], np.ones(32)) == 0
    assert shard.stats().num_stale_priorities == 0


def test_shard_draws_are_seeded() -> None:
    drawn = []
    for seed in (1, 1, 2):
        shard = ReplayShard(CONFIG, seed)
        shard.add_batch(rows(0, 50))
        drawn.append(drawn_from(shard)[KEYS].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def work(shard: ReplayShard, first: int) -> list[SampleBatch]:
    """Add, draw and update for a while, in a way that depends on everything that was drawn before."""
    batches = []
    for turn in range(30):
        start = first + 7 * turn
        shard.add_batch(rows(start, 7, td_errors=np.linspace(0, turn, 7)) if turn % 2 else rows(start, 7))
        batch = shard.replay(beta=turn / 30)
        if batch is not None:
            shard.update_priorities(batch[KEYS] - turn % 3 * 40, np.abs(np.sin(batch[REWARDS])) * (turn + 1))
            batches.append(batch)
    return batches


@pytest.mark.parametrize("prioritized", [True, False])
def test_shard_loaded_state_continues_bit_for_bit(prioritized: bool) -> None:
    original = ReplayShard(replace(CONFIG, prioritized=prioritized, eps=1e-6), seed=5)
    work(original, first=0)
    state = in_memory(original.state())
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    others = {name: value for name, value in state.items() if name not in arrays}
    copy = ReplayShard(replace(CONFIG, prioritized=prioritized, eps=1e-6), seed=99)
    ahead = work(original, first=1000)
    copy.load({**arrays, **json.loads(json.dumps(others))})
    for expected, batch in zip(ahead, work(copy, first=1000), strict=True):
        assert_same_batch(batch, expected)
    assert copy.stats() == original.stats()


def test_shard_refuses_state_of_other_buffer() -> None:
    uniform = ReplayShard(replace(CONFIG, prioritized=False), seed=0)
    with pytest.raises(CheckpointError, match="uniform"):
        uniform.load(in_memory(ReplayShard(CONFIG, seed=0).state()))


def test_shard_close_is_idempotent() -> None:
    shard = ReplayShard(replace(CONFIG, prioritized=False), seed=0)
    shard.add_batch(rows(0, 20))
    shard.close()
    shard.close()
    assert shard.stats().nbytes == 0


@pytest.mark.parametrize(("total", "shards", "share"), [(10, 1, 10), (10, 3, 4), (9, 3, 3), (1, 4, 1), (0, 2, 0)])
def test_split_evenly_rounds_up(total: int, shards: int, share: int) -> None:
    assert split_evenly(total, shards) == share
    assert share * shards >= total


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
    return stacked_rows(first, frames, {ACTIONS: np.arange(count)})


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
    drawn, drawn_again = (drawn_from(each) for each in (shard, again))
    np.testing.assert_equal(drawn_again.columns, drawn.columns)
