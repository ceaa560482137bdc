"""Compressed storage is the plain one, only smaller: by random writes and reads against ArrayStorage."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay import ReplayShard
from rlexp.replay.storage import ArrayStorage, CompressedStorage, Storage
from rlexp.replay.storage.compressed import LEAST_ROW_BYTES
from rlexp.sample_batch import ACTIONS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from tests.unit.replay.test_replay_shard import CONFIG

CAPACITY = 8
IMAGE = (16, 16, 4)


def images(count: int, seed: int = 0, noise: bool = False) -> Array:
    rng = np.random.default_rng(seed)
    if noise:
        return rng.integers(0, 256, (count, *IMAGE), dtype=np.uint8)
    return np.repeat(rng.integers(0, 256, (count, 1, 1, 4), dtype=np.uint8), 256, axis=1).reshape(count, *IMAGE)


def rows(count: int, seed: int = 0, noise: bool = False) -> SampleBatch:
    batch = SampleBatch(
        {
            OBS: images(count, seed, noise),
            ACTIONS: np.arange(count) + 10 * seed,
            REWARDS: np.full(count, seed, np.float32),
            NEW_OBS: images(count, seed + 1, noise),
        }
    )
    for column in batch.columns.values():
        column.flags.writeable = False
    return batch


def vectors(count: int, size: int, dtype: Any = np.float32) -> SampleBatch:
    return SampleBatch({OBS: np.zeros((count, size), dtype), ACTIONS: np.arange(count)})


def assert_equal(batch: SampleBatch, expected: SampleBatch) -> None:
    assert set(batch) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name])
        assert batch[name].dtype == expected[name].dtype


@given(
    writes=st.lists(st.tuples(st.integers(0, CAPACITY - 1), st.integers(1, CAPACITY), st.booleans()), max_size=6),
    reads=st.lists(st.integers(0, CAPACITY - 1), max_size=6),
    through_a_checkpoint=st.booleans(),
)
def test_it_gives_back_what_a_plain_storage_would(
    writes: list[tuple[int, int, bool]], reads: list[int], through_a_checkpoint: bool
) -> None:
    plain, compressed = ArrayStorage(CAPACITY), CompressedStorage(CAPACITY)
    for storage in (plain, compressed):
        storage.write(0, rows(CAPACITY))
        for seed, (start, count, noise) in enumerate(writes):
            storage.write(start, rows(min(count, CAPACITY - start), seed, noise))
    if through_a_checkpoint:
        restored = CompressedStorage(CAPACITY)
        restored.load(compressed.state(CAPACITY), CAPACITY)
        assert restored.nbytes == compressed.nbytes
        compressed = restored
    slots = np.array(reads, np.int64)
    assert_equal(compressed.read(slots), plain.read(slots))


def test_images_take_far_less_memory() -> None:
    plain, compressed = ArrayStorage(100), CompressedStorage(100)
    assert compressed.nbytes == 0
    for storage in (plain, compressed):
        storage.write(0, rows(CAPACITY))
    assert compressed.nbytes < plain.nbytes / 5


def test_the_memory_is_foretold_from_the_rows_held_and_follows_them() -> None:
    storage = CompressedStorage(100)
    storage.write(0, rows(10))
    foretold = storage.nbytes
    for start in range(10, 100, 10):
        storage.write(start, rows(10, seed=start))
    assert storage.nbytes == pytest.approx(foretold, rel=0.2)
    for start in range(0, 100, 10):
        storage.write(start, rows(10, seed=start, noise=True))
    assert storage.nbytes > 100 * 2 * 1024, "noise does not compress"


@pytest.mark.parametrize(("size", "smaller"), [(LEAST_ROW_BYTES // 4, True), (LEAST_ROW_BYTES // 4 - 1, False)])
def test_small_rows_are_kept_as_they_are(size: int, smaller: bool) -> None:
    plain, compressed = ArrayStorage(CAPACITY), CompressedStorage(CAPACITY)
    for storage in (plain, compressed):
        storage.write(0, vectors(CAPACITY, size))
    assert (compressed.nbytes < plain.nbytes) is smaller
    assert compressed.nbytes <= plain.nbytes


@pytest.mark.parametrize(
    "wrong",
    [
        SampleBatch({ACTIONS: np.arange(2)}),
        rows(2).with_columns(**{OBS: np.zeros((2, 16, 16, 3), np.uint8)}),
        rows(2).with_columns(**{NEW_OBS: np.zeros((2, *IMAGE), np.int8)}),
        rows(2).with_columns(**{REWARDS: np.zeros(2, np.float64)}),
        rows(2).with_columns(more=np.zeros(2)),
    ],
)
def test_other_columns_than_the_first_are_refused_and_nothing_is_written(wrong: SampleBatch) -> None:
    storage = CompressedStorage(CAPACITY)
    storage.write(0, rows(CAPACITY))
    with pytest.raises(ValueError, match="column"):
        storage.write(0, wrong)
    assert_equal(storage.read(np.arange(CAPACITY)), rows(CAPACITY))


def test_closing_gives_the_memory_back_and_may_be_repeated() -> None:
    storage = CompressedStorage(CAPACITY)
    storage.write(0, rows(CAPACITY))
    storage.close()
    storage.close()
    assert storage.nbytes == 0


def test_an_empty_state_makes_an_empty_storage() -> None:
    storage = CompressedStorage(CAPACITY)
    storage.write(0, rows(CAPACITY))
    storage.load(CompressedStorage(CAPACITY).state(0), 0)
    assert storage.nbytes == 0
    storage.write(0, vectors(2, 3))
    assert storage.read(np.array([1]))[ACTIONS].tolist() == [1]


def states(source: Storage, target: Storage, count: int = 4) -> None:
    source.write(0, rows(4))
    target.load(source.state(4), count)


@pytest.mark.parametrize(
    ("source", "target", "count"),
    [
        (ArrayStorage(CAPACITY), CompressedStorage(CAPACITY), 4),
        (CompressedStorage(CAPACITY), ArrayStorage(CAPACITY), 4),
        (CompressedStorage(CAPACITY), CompressedStorage(CAPACITY), 3),
    ],
)
def test_a_state_of_another_kind_or_size_is_refused(source: Storage, target: Storage, count: int) -> None:
    with pytest.raises(CheckpointError):
        states(source, target, count)


@pytest.mark.parametrize("part", ["obs.sizes", "obs.sample", "new_obs.packed"])
def test_a_state_that_lacks_a_part_is_refused(part: str) -> None:
    storage = CompressedStorage(CAPACITY)
    storage.write(0, rows(4))
    state = storage.state(4)
    del state[part]
    with pytest.raises(CheckpointError):
        CompressedStorage(CAPACITY).load(state, 4)


def test_a_shard_with_compression_gives_the_same_batches_and_goes_on_from_its_state() -> None:
    plain = ReplayShard(CONFIG, seed=3)
    compressed = ReplayShard(dataclasses.replace(CONFIG, compress_observations=True), seed=3)
    for shard in (plain, compressed):
        for seed in range(15):
            shard.add_batch(rows(CAPACITY, seed))
    restored = ReplayShard(dataclasses.replace(CONFIG, compress_observations=True), seed=0)
    restored.load(compressed.state())
    assert compressed.stats().nbytes < plain.stats().nbytes / 5
    expected = plain.replay()
    assert expected is not None
    for shard in (compressed, restored):
        batch = shard.replay()
        assert batch is not None
        assert_equal(batch, expected)
