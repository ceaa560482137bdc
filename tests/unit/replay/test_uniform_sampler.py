"""What both samplers must do: keep the newest rows, and hand out copies under their own keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay.rows import RowRing
from rlexp.replay.samplers import PrioritizedSampler, Sampler, UniformSampler
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import ACTIONS, IMPORTANCE_WEIGHTS, KEYS, OBS, REWARDS, SampleBatch
from tests.replay_states import in_memory

MakeSampler = Callable[[int], Sampler]


def numbered_rows(first: int, count: int) -> SampleBatch:
    """Rows that say in every column which one they are, in memory as read-only as an object store's."""
    numbers = np.arange(first, first + count)
    batch = SampleBatch({OBS: np.stack([numbers, -numbers], axis=1).astype(np.float32), ACTIONS: numbers})
    for column in batch.columns.values():
        column.flags.writeable = False
    return batch


def uniform(capacity: int) -> Sampler:
    return UniformSampler(RowRing(capacity, FrameStorage(capacity, compress=False)))


def prioritized(capacity: int) -> Sampler:
    return PrioritizedSampler(RowRing(capacity, FrameStorage(capacity, compress=False)), 0.6)


both = pytest.mark.parametrize("make_sampler", [uniform, prioritized])


@both
@given(capacity=st.sampled_from([1, 2, 3, 7, 600]), counts=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_sampler_holds_newest_rows_by_key(make_sampler: MakeSampler, capacity: int, counts: list[int]) -> None:
    sampler, added = make_sampler(capacity), 0
    for count in counts:
        sampler.add(numbered_rows(added, count), None)
        added += count
    held = range(max(added - capacity, 0), added)
    assert (sampler.rows.num_added, sampler.rows.size) == (added, len(held))
    if not held:
        with pytest.raises(ValueError, match="nothing"):
            sampler.sample(1, 1.0, np.random.default_rng(0))
        return
    batch = sampler.sample(40 * len(held), 0.5, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) <= set(held)
    assert len(set(batch[KEYS].tolist())) >= len(held) - 3  # each is missed with probability e^-40
    assert batch[KEYS].dtype == np.int64
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])
    np.testing.assert_array_equal(batch[OBS], np.stack([batch[KEYS], -batch[KEYS]], axis=1))
    np.testing.assert_array_equal(batch[IMPORTANCE_WEIGHTS], np.ones(len(batch), np.float32))


@both
def test_sampler_keeps_last_rows_of_a_large_batch(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(5)
    sampler.add(numbered_rows(0, 3), None)
    sampler.add(numbered_rows(3, 14), np.arange(14.0) + 1)
    batch = sampler.sample(500, 0.0, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) == {12, 13, 14, 15, 16}
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_sampler_sample_returns_copies(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(4)
    sampler.add(numbered_rows(0, 4), None)
    batch = sampler.sample(100, 1.0, np.random.default_rng(0))
    for column in batch.columns.values():
        column[...] = 77
    again = sampler.sample(100, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(again[ACTIONS], again[KEYS])
    assert again[ACTIONS].max() == 3


@both
def test_sampler_add_copies_rows(make_sampler: MakeSampler) -> None:
    sampler, actions = make_sampler(4), np.arange(4)
    sampler.add(SampleBatch({ACTIONS: actions}), None)
    actions[...] = 77
    batch = sampler.sample(50, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_sampler_draws_are_seeded(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1000)
    sampler.add(numbered_rows(0, 1000), np.arange(1000.0))
    first, same, other = (sampler.sample(64, 1.0, np.random.default_rng(seed))[KEYS] for seed in (1, 1, 2))
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
def test_sampler_refuses_other_columns(make_sampler: MakeSampler, other: SampleBatch, message: str) -> None:
    sampler = make_sampler(4)
    sampler.add(numbered_rows(0, 3), None)
    with pytest.raises(ValueError, match=message):
        sampler.add(other, None)
    assert sampler.rows.num_added == 3
    assert set(sampler.sample(100, 1.0, np.random.default_rng(0))[KEYS].tolist()) == {0, 1, 2}


@both
def test_sampler_loaded_state_draws_the_same(make_sampler: MakeSampler) -> None:
    original, copy = make_sampler(50), make_sampler(50)
    original.add(numbered_rows(0, 73), np.linspace(0, 5, 73))
    copy.add(numbered_rows(0, 20), None)
    state = in_memory(original.state())
    original.add(numbered_rows(73, 10), None)  # must not reach the state taken before
    copy.load(state)
    copy.add(numbered_rows(73, 10), None)
    drawn = [sampler.sample(300, 0.4, np.random.default_rng(3)) for sampler in (original, copy)]
    for name in drawn[0]:
        np.testing.assert_array_equal(drawn[0][name], drawn[1][name])


@both
def test_sampler_loads_empty_state(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(3)
    sampler.add(numbered_rows(0, 2), None)
    sampler.load(in_memory(make_sampler(3).state()))
    assert sampler.rows.size == 0
    sampler.add(SampleBatch({REWARDS: np.zeros(1)}), None)  # columns are open again
    assert sampler.rows.size == 1


@both
def test_sampler_refuses_state_of_other_capacity(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(3)
    sampler.add(numbered_rows(0, 2), None)
    with pytest.raises(CheckpointError, match="capacity 3 does not fit into 4"):
        make_sampler(4).load(in_memory(sampler.state()))
    with pytest.raises(CheckpointError, match="should hold 3 rows"):
        make_sampler(3).load({**in_memory(sampler.state()), "num_added": 3})


@both
def test_sampler_nbytes_and_close(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1000)
    before = sampler.nbytes
    sampler.add(numbered_rows(0, 1), None)
    assert sampler.nbytes - before == 1000 * 16  # two float32 and an int64 a row
    sampler.rows.close()
    sampler.rows.close()
    assert sampler.nbytes == before


@both
def test_sampler_refuses_capacity_zero(make_sampler: MakeSampler) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make_sampler(0)


def test_uniform_draws_equally_often() -> None:
    sampler = uniform(100)
    sampler.add(numbered_rows(0, 130), np.full(130, np.nan))
    assert sampler.update_priorities(np.array([0, 129, 10**9]), np.array([np.nan, 1.0, 1.0])) == 0
    counts = np.bincount(sampler.sample(100_000, 1.0, np.random.default_rng(0))[KEYS] - 30, minlength=100)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert 60 < chi_square < 150  # 99 degrees of freedom
