"""What both buffers must do: keep the newest rows, and hand out copies under their own keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay.buffer import PrioritizedReplayBuffer, ReplayBuffer, UniformReplayBuffer
from rlexp.replay.ring import RowRing
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import ACTIONS, IMPORTANCE_WEIGHTS, KEYS, OBS, REWARDS, SampleBatch
from tests.replay_states import in_memory

MakeBuffer = Callable[[int], ReplayBuffer]


def numbered_rows(first: int, count: int) -> SampleBatch:
    """Rows that say in every column which one they are, in memory as read-only as an object store's."""
    numbers = np.arange(first, first + count)
    batch = SampleBatch({OBS: np.stack([numbers, -numbers], axis=1).astype(np.float32), ACTIONS: numbers})
    for column in batch.columns.values():
        column.flags.writeable = False
    return batch


def uniform(capacity: int) -> ReplayBuffer:
    return UniformReplayBuffer(RowRing(capacity, FrameStorage(capacity, compress=False)))


def prioritized(capacity: int) -> ReplayBuffer:
    return PrioritizedReplayBuffer(RowRing(capacity, FrameStorage(capacity, compress=False)), 0.6)


both = pytest.mark.parametrize("make_buffer", [uniform, prioritized])


@both
@given(capacity=st.sampled_from([1, 2, 3, 7, 600]), counts=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_buffer_holds_newest_rows_by_key(make_buffer: MakeBuffer, capacity: int, counts: list[int]) -> None:
    buffer, added = make_buffer(capacity), 0
    for count in counts:
        buffer.add(numbered_rows(added, count), None)
        added += count
    held = range(max(added - capacity, 0), added)
    assert (buffer.rows.num_added, buffer.rows.size) == (added, len(held))
    if not held:
        with pytest.raises(ValueError, match="nothing"):
            buffer.sample(1, 1.0, np.random.default_rng(0))
        return
    batch = buffer.sample(40 * len(held), 0.5, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) <= set(held)
    assert len(set(batch[KEYS].tolist())) >= len(held) - 3  # each is missed with probability e^-40
    assert batch[KEYS].dtype == np.int64
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])
    np.testing.assert_array_equal(batch[OBS], np.stack([batch[KEYS], -batch[KEYS]], axis=1))
    np.testing.assert_array_equal(batch[IMPORTANCE_WEIGHTS], np.ones(len(batch), np.float32))


@both
def test_buffer_keeps_last_rows_of_a_large_batch(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(5)
    buffer.add(numbered_rows(0, 3), None)
    buffer.add(numbered_rows(3, 14), np.arange(14.0) + 1)
    batch = buffer.sample(500, 0.0, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) == {12, 13, 14, 15, 16}
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_buffer_sample_returns_copies(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(4)
    buffer.add(numbered_rows(0, 4), None)
    batch = buffer.sample(100, 1.0, np.random.default_rng(0))
    for column in batch.columns.values():
        column[...] = 77
    again = buffer.sample(100, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(again[ACTIONS], again[KEYS])
    assert again[ACTIONS].max() == 3


@both
def test_buffer_add_copies_rows(make_buffer: MakeBuffer) -> None:
    buffer, actions = make_buffer(4), np.arange(4)
    buffer.add(SampleBatch({ACTIONS: actions}), None)
    actions[...] = 77
    batch = buffer.sample(50, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_buffer_draws_are_seeded(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(1000)
    buffer.add(numbered_rows(0, 1000), np.arange(1000.0))
    first, same, other = (buffer.sample(64, 1.0, np.random.default_rng(seed))[KEYS] for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


@both
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (SampleBatch({OBS: np.zeros((1, 2), np.float32)}), "columns"),
        (SampleBatch({OBS: np.zeros((1, 3), np.float32), ACTIONS: np.zeros(1, np.int64)}), r"obs.*\[3\].*\[2\]"),
        (SampleBatch({OBS: np.zeros((1, 2)), ACTIONS: np.zeros(1, np.int64)}), "float64.*float32"),
    ],
)
def test_buffer_refuses_other_columns(make_buffer: MakeBuffer, other: SampleBatch, message: str) -> None:
    buffer = make_buffer(4)
    buffer.add(numbered_rows(0, 3), None)
    with pytest.raises(ValueError, match=message):
        buffer.add(other, None)
    assert buffer.rows.num_added == 3
    assert set(buffer.sample(100, 1.0, np.random.default_rng(0))[KEYS].tolist()) == {0, 1, 2}


@both
def test_buffer_loaded_state_draws_the_same(make_buffer: MakeBuffer) -> None:
    original, copy = make_buffer(50), make_buffer(50)
    original.add(numbered_rows(0, 73), np.linspace(0, 5, 73))
    copy.add(numbered_rows(0, 20), None)
    state = in_memory(original.state())
    original.add(numbered_rows(73, 10), None)  # must not reach the state taken before
    copy.load(state)
    copy.add(numbered_rows(73, 10), None)
    drawn = [buffer.sample(300, 0.4, np.random.default_rng(3)) for buffer in (original, copy)]
    for name in drawn[0]:
        np.testing.assert_array_equal(drawn[0][name], drawn[1][name])


@both
def test_buffer_loads_empty_state(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(3)
    buffer.add(numbered_rows(0, 2), None)
    buffer.load(in_memory(make_buffer(3).state()))
    assert buffer.rows.size == 0
    buffer.add(SampleBatch({REWARDS: np.zeros(1)}), None)  # columns are open again
    assert buffer.rows.size == 1


@both
def test_buffer_refuses_state_of_other_capacity(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(3)
    buffer.add(numbered_rows(0, 2), None)
    with pytest.raises(CheckpointError, match="capacity 3 does not fit into 4"):
        make_buffer(4).load(in_memory(buffer.state()))
    with pytest.raises(CheckpointError, match="should hold 3 rows"):
        make_buffer(3).load({**in_memory(buffer.state()), "num_added": 3})


@both
def test_buffer_nbytes_and_close(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(1000)
    before = buffer.nbytes
    buffer.add(numbered_rows(0, 1), None)
    assert buffer.nbytes - before == 1000 * 16  # two float32 and an int64 a row
    buffer.rows.close()
    buffer.rows.close()
    assert buffer.nbytes == before


@both
def test_buffer_refuses_capacity_zero(make_buffer: MakeBuffer) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make_buffer(0)


def test_uniform_draws_equally_often() -> None:
    buffer = uniform(100)
    buffer.add(numbered_rows(0, 130), np.full(130, np.nan))
    assert buffer.update_priorities(np.array([0, 129, 10**9]), np.array([np.nan, 1.0, 1.0])) == 0
    counts = np.bincount(buffer.sample(100_000, 1.0, np.random.default_rng(0))[KEYS] - 30, minlength=100)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert 60 < chi_square < 150  # 99 degrees of freedom
