"""Rows that can be told from damaged ones, for buffers in this process, and for others that write shared memory."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import pytest

from rlexp.processes.shared_memory import Segment
from rlexp.replay import PrioritizedReplayBuffer, ReplayBuffer
from rlexp.replay.shared.rows import RingSizes, SharedRows, SharedRowWriter
from rlexp.sample_batch import ACTIONS, NEW_OBS, OBS, REWARDS, Array, SampleBatch

AnyBuffer = ReplayBuffer | PrioritizedReplayBuffer
MakeBuffer = Callable[..., AnyBuffer]

both = pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
"""The buffers of the replay library in the memory of one process."""

COLUMNS = {
    "obs": ((2,), np.float32),
    "action": ((), np.int8),
    "number": ((), np.int64),
    "picture": ((3, 40), np.uint8),
    "done": ((1,), bool),
}


def rows_of(numbers: Array) -> dict[str, Array]:
    """Return the rows ``[B]`` of these numbers."""
    return {
        "obs": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "action": (numbers % 100).astype(np.int8),
        "number": numbers,
        "picture": np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (len(numbers), 3, 40)),
        "done": (numbers % 2 == 0)[:, None],
    }


def rows(first: int, count: int) -> dict[str, Array]:
    return rows_of(np.arange(first, first + count))


def check_rows(batch: dict[str, Array]) -> None:
    for name, expected in rows_of(batch["number"]).items():
        np.testing.assert_array_equal(batch[name], expected)
        assert batch[name].dtype == expected.dtype


LONGEST_BATCH = 60


def checked_rows(count: int, rng: np.random.Generator) -> SampleBatch:
    """Random rows, each with the sum of all its numbers; two columns are narrow and two are wide."""
    obs = rng.integers(0, 1000, (count, 25))
    new_obs = rng.integers(0, 1000, (count, 100)).astype(np.float32)
    actions = rng.integers(0, 1000, count)
    return SampleBatch({OBS: obs, NEW_OBS: new_obs, ACTIONS: actions, REWARDS: row_sums(obs, new_obs, actions)})


def row_sums(obs: Array, new_obs: Array, actions: Array) -> Array:
    return np.asarray(obs.sum(axis=1) + new_obs.sum(axis=1) + actions, np.float64)


def check_whole(batch: SampleBatch) -> None:
    np.testing.assert_array_equal(batch[REWARDS], row_sums(batch[OBS], batch[NEW_OBS], batch[ACTIONS]))


def write_for_ever(writer: SharedRowWriter, seed: int, told: Connection) -> None:
    """Write batches of any length as fast as there is room; tell of the first only."""
    rng = np.random.default_rng(seed)
    told.send(writer.write(checked_rows(LONGEST_BATCH, rng)))
    while True:
        writer.write(checked_rows(int(rng.integers(1, LONGEST_BATCH + 1)), rng))


def own_a_segment(sizes: RingSizes, told: Connection) -> None:
    """Be the learner's process: make the memory, let others in, and wait for the end."""
    segment = Segment.create()
    rows = SharedRows(segment, sizes)
    told.send(segment.handle)
    told.recv()
    rows.close()
