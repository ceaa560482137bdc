"""Rows and weights as bytes and back."""

from dataclasses import replace

import numpy as np
import pytest

from rlexp.board.messages.envelope import (
    DTYPES,
    Header,
    Message,
    pack_arrays,
    pack_rows,
    read_message,
    seal,
    unpack_arrays,
    unpack_rows,
)
from rlexp.board.messages.errors import InvalidMessageError
from rlexp.sample_batch import ACTIONS, FRAME_IDS, NEW_FRAME_IDS, OBS, Array, FrameRows, SampleBatch

KEY = bytes(32)
HEADER = Header("t1", 0, 1, 0)


def sent(arrays: dict[str, Array]) -> Message:
    columns, raw = pack_arrays(arrays)
    (message,) = seal(replace(HEADER, columns=columns), raw, KEY, 1 << 22)
    return read_message(message, KEY, 1 << 22)


def sent_rows(rows: SampleBatch | FrameRows) -> SampleBatch | FrameRows:
    columns, raw = pack_rows(rows)
    (message,) = seal(replace(HEADER, columns=columns), raw, KEY, 1 << 22)
    return unpack_rows(read_message(message, KEY, 1 << 22))


def frame_rows() -> FrameRows:
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, 6, (5, 4)) for name in (FRAME_IDS, NEW_FRAME_IDS)}
    frames = rng.integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    return FrameRows(SampleBatch({**ids, ACTIONS: np.arange(5)}), frames, np.arange(100, 106))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = unpack_arrays(sent({"a": array, "b": array}))
    for name in ("a", "b"):
        assert (found[name].dtype, found[name].shape) == (array.dtype, shape)
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_order_of_memory_and_of_bytes_do_not_matter() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = unpack_arrays(sent({"view": array.transpose(2, 0, 1)[::-1], "big": array.astype(">f4")}))
    assert np.array_equal(found["view"], array.transpose(2, 0, 1)[::-1])
    assert np.array_equal(found["big"], array)
    assert found["big"].dtype == np.float32


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(1, "complex64")])
def test_other_dtypes_are_not_packed(array: Array) -> None:
    with pytest.raises(ValueError, match="no message can carry"):
        pack_arrays({"a": array})


def test_rows_come_back() -> None:
    batch = SampleBatch({OBS: np.random.default_rng(0).normal(size=(7, 4)), ACTIONS: np.arange(7)})
    found = sent_rows(batch)
    assert isinstance(found, SampleBatch)
    assert list(found) == [OBS, ACTIONS]
    assert np.array_equal(found[OBS], batch[OBS])


def test_rows_with_frames_come_back() -> None:
    rows = frame_rows()
    found = sent_rows(rows)
    assert isinstance(found, FrameRows)
    assert np.array_equal(found.frames, rows.frames)
    assert np.array_equal(found.numbers, rows.numbers)
    assert np.array_equal(found.stacks()[OBS], rows.stacks()[OBS])


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a": np.zeros(())},
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2))},
        {"a": np.zeros(2), ":numbers": np.zeros(1, np.int64)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(2, np.int64)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1)},
        {FRAME_IDS: np.full((2, 1), 1), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {FRAME_IDS: np.full((2, 1), -1), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {FRAME_IDS: np.zeros(2, np.int64), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {NEW_FRAME_IDS: np.zeros((2, 1)), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
    ],
)
def test_what_is_no_rows_is_refused(arrays: dict[str, Array]) -> None:
    with pytest.raises(InvalidMessageError):
        unpack_rows(sent(arrays))
