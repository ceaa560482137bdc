"""Rows of any columns come back as they were written, in lent memory that is used again when nothing can see it."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.replay.storage.array import MIN_FRAMED_BYTES, MOST_IDLE, NARROW_BYTES, ArrayStorage, LentArrays
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch

SHAPE = (1024, MIN_FRAMED_BYTES // 1024)
BYTE = np.dtype(np.uint8)


@settings(max_examples=30, deadline=None)  # it writes megabytes
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_lent_arrays_never_share_memory_in_use(script: list[tuple[bool, int]]) -> None:
    lent, held, numbers = LentArrays(), dict[int, Array](), itertools.count(1)
    for larger, dropped in script:
        held.pop(dropped, None)
        array = lent.lend((2, *SHAPE) if larger else SHAPE, BYTE)
        array[...] = number = next(numbers)
        held[next(key for key in itertools.count() if key not in held)] = array[..., :number]  # a part holds it all
        del array
        assert all(view.min() == view.max() for view in held.values())
        assert len({int(view.flat[0]) for view in held.values()}) == len(held)


def test_lent_arrays_reuse_free_memory() -> None:
    lent = LentArrays()
    address = lent.lend(SHAPE, BYTE).ctypes.data
    again = lent.lend(SHAPE[::-1], BYTE)
    assert again.ctypes.data == address
    assert again.shape == SHAPE[::-1]
    assert lent.lend((MIN_FRAMED_BYTES // 4,), np.dtype(np.float32)).ctypes.data != address
    del again
    assert lent.lend((MIN_FRAMED_BYTES // 4,), np.dtype(np.float32)).ctypes.data == address


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array[3:5],
        lambda array: array.reshape(-1)[::7][1:].reshape(-1, 1).T,
        lambda array: array.view(np.float32),
        lambda array: np.asarray(memoryview(array)),
        lambda array: torch.from_numpy(array)[1:],
        lambda array: torch.from_numpy(array).view(torch.float32).numpy(),
        lambda array: np.from_dlpack(array[1:]),
        lambda array: iter(array),
    ],
)
def test_lent_arrays_stay_in_use_through_views_and_tensors(keep: Callable[[Array], object]) -> None:
    lent = LentArrays()
    array = lent.lend(SHAPE, BYTE)
    address, kept = array.ctypes.data, keep(array)
    del array
    gc.collect()
    assert lent.lend(SHAPE, BYTE).ctypes.data != address
    del kept
    addresses = {other.ctypes.data for other in [lent.lend(SHAPE, BYTE) for _ in range(2)]}
    assert address in addresses


def test_lent_arrays_bound_idle_memory() -> None:
    lent = LentArrays()
    tracemalloc.start()
    try:
        held = [lent.lend(SHAPE, BYTE) for _ in range(3 * MOST_IDLE)]
        held.clear()
        held.append(lent.lend(SHAPE, BYTE))
        assert tracemalloc.get_traced_memory()[0] < (MOST_IDLE + 1.5) * MIN_FRAMED_BYTES
    finally:
        tracemalloc.stop()


def test_lent_arrays_do_not_manage_small_arrays() -> None:
    array = LentArrays().lend((3, 4), np.dtype(np.float32))
    assert array.shape == (3, 4)
    assert array.dtype == np.float32
    assert array.base is None


CAPACITY = 16
SHAPES = [(), (1,), (3,), (0,), (2, 3), (NARROW_BYTES,), (NARROW_BYTES + 1,), (5, 5, 4)]
DTYPES = [np.uint8, np.int8, np.bool_, np.float16, np.float32, np.float64, np.int64]


def filled(count: int, shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """An array ``[count, *shape]`` of random numbers, as read-only as an object store's."""
    array = np.random.default_rng(seed).integers(0, 100, (count, *shape)).astype(dtype)
    array.flags.writeable = False
    return array


columns = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=5)
writes = st.lists(st.tuples(st.integers(0, CAPACITY - 1), st.integers(0, CAPACITY)), max_size=5)
slots = st.lists(st.integers(0, CAPACITY - 1), max_size=20)


@given(columns, writes, slots, st.booleans())
def test_array_storage_matches_a_dict_of_arrays(
    forms: list[tuple[tuple[int, ...], Any]], writes: list[tuple[int, int]], slots: list[int], reload: bool
) -> None:
    storage = ArrayStorage(CAPACITY)
    model = {f"column {index}": filled(CAPACITY, *form, seed=index).copy() for index, form in enumerate(forms)}
    storage.write(0, SampleBatch(model))
    for seed, (start, count) in enumerate(writes):
        count = min(count, CAPACITY - start)
        given = {f"column {index}": filled(count, *form, seed=seed) for index, form in enumerate(forms)}
        storage.write(start, SampleBatch(dict(reversed(given.items()))))
        for name, rows in given.items():
            model[name][start : start + count] = rows
    if reload:
        state, storage = storage.state(CAPACITY), ArrayStorage(CAPACITY)
        storage.load(state, CAPACITY)
    batch = storage.read(np.array(slots, np.int64))
    assert list(batch) == list(model)
    for name, rows in model.items():
        np.testing.assert_array_equal(batch[name], rows[slots])
        assert batch[name].dtype == rows.dtype
        assert batch[name].flags.c_contiguous
        assert batch[name].flags.writeable


def image_storage(rows: int) -> ArrayStorage:
    """A storage of ``rows`` rows that each say in all their pixels which one they are."""
    storage, numbers = ArrayStorage(rows), np.arange(rows)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None], (rows, 64, 64))
    storage.write(0, SampleBatch({OBS: images, ACTIONS: numbers}))
    return storage


def test_array_storage_read_batches_do_not_change() -> None:
    storage, rng = image_storage(200), np.random.default_rng(0)
    queued: deque[SampleBatch] = deque()
    for _ in range(40):
        queued.append(storage.read(rng.integers(0, 200, 300)))
        if len(queued) > 5 or rng.random() < 0.4:
            batch = queued.popleft()
            assert batch[OBS].nbytes > MIN_FRAMED_BYTES
            assert (batch[OBS] == batch[ACTIONS][:, None, None]).all()


def test_array_storage_reuses_memory_of_dropped_batches() -> None:
    storage = image_storage(50)
    storage.read(np.zeros(300, np.int64))
    tracemalloc.start()
    try:
        assert storage.read(np.ones(300, np.int64))[OBS].nbytes > MIN_FRAMED_BYTES
        assert tracemalloc.get_traced_memory()[1] < MIN_FRAMED_BYTES
    finally:
        tracemalloc.stop()


def test_array_storage_uses_given_allocator() -> None:
    made: list[Array] = []

    def make_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        made.append(np.zeros(shape, dtype))
        return made[-1]

    storage = ArrayStorage(4, make_array)
    assert made == []
    storage.write(1, SampleBatch({OBS: np.full((1, 100), 7.0), ACTIONS: np.array([3])}))
    assert sum(array.nbytes for array in made) == storage.nbytes == 4 * 808
    copy = np.concatenate([array.view(np.uint8).ravel() for array in made])
    assert np.count_nonzero(copy) == 100 * 2 + 1  # a double 7 has two bytes that are not zero, the integer 3 has one


@pytest.mark.parametrize("shape", [(NARROW_BYTES,), (NARROW_BYTES + 1,)])
def test_array_storage_refuses_other_columns(shape: tuple[int, ...]) -> None:
    storage = ArrayStorage(4)
    storage.write(0, SampleBatch({OBS: np.zeros((2, *shape), np.uint8)}))
    with pytest.raises(ValueError, match="column obs"):
        storage.write(0, SampleBatch({OBS: np.ones((2, 1), np.uint8)}))
    with pytest.raises(ValueError, match="column obs"):
        storage.write(0, SampleBatch({OBS: np.ones((2, *shape), np.int8)}))
    assert not storage.read(np.arange(2))[OBS].any()
