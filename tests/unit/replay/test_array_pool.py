"""Lent memory is used again, but never while anything can still see it."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.replay.storage.array import MIN_FRAMED_BYTES, MOST_IDLE, LentArrays
from rlexp.sample_batch import Array

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
