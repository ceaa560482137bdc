"""Fragments and weights keep every bit on their way."""

from dataclasses import replace

import numpy as np
import pytest

from rlexp.board.messages.credentials import SharedKeys
from rlexp.board.messages.envelope import Header, read_message
from rlexp.board.messages.errors import InvalidMessageError
from rlexp.board.messages.payloads import Newer, open_fragment, open_weights, seal_fragment, seal_weights
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import FrameRows, SampleBatch
from tests.board_fragments import KEYS, MAX_BYTES, TASK, info_of, rows_of

HEADER = Header(TASK, 0, 1, 0)


def test_frames_and_moments_arrive_as_they_were_sent() -> None:
    ids = np.array([[0, 1], [1, 2]], np.int32)
    rows = FrameRows(
        SampleBatch({"frame_ids": ids, "new_frame_ids": ids, "actions": np.array([1, 2])}),
        np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1),
        np.array([10, 11, 12]),
    )
    moments = Moments(5, np.array([0.5, 1.0]), np.array([2.0, 3.0]))
    info = replace(info_of(rows.rows), observed=moments)
    (message,) = seal_fragment(HEADER, rows, info, KEYS.key, MAX_BYTES)
    opened, report = open_fragment(read_message(message, KEYS.key, MAX_BYTES), 2)
    assert isinstance(opened, FrameRows)
    np.testing.assert_array_equal(opened.frames, rows.frames)
    np.testing.assert_array_equal(opened.numbers, rows.numbers)
    np.testing.assert_array_equal(opened.rows["frame_ids"], ids)
    assert report.observed is not None
    assert report.observed.count == 5
    np.testing.assert_array_equal(report.observed.squares, moments.squares)


def test_fragment_without_rows_still_counts_its_steps() -> None:
    rows = rows_of(0, count=0)
    (message,) = seal_fragment(HEADER, rows, info_of(rows, num_env_steps=9), KEYS.key, MAX_BYTES)
    opened, info = open_fragment(read_message(message, KEYS.key, MAX_BYTES), 0)
    assert (opened.count, info.num_env_steps) == (0, 9)


def test_weights_arrive_as_they_were_sent() -> None:
    moments = Moments(3, np.zeros(2), np.ones(2))
    newer = Newer(12, {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(0, np.float32)}, moments, 99)
    opened = open_weights(seal_weights(TASK, 5, newer, KEYS), TASK, 12, KEYS, MAX_BYTES)
    assert (opened.version, opened.num_steps_sampled) == (12, 99)
    np.testing.assert_array_equal(opened.weights["w"], newer.weights["w"])
    assert opened.moments is not None
    assert opened.moments.count == 3


def test_weights_of_another_version_size_or_key_are_refused() -> None:
    blob = seal_weights(TASK, 5, Newer(12, {"w": np.zeros(6, np.float32)}, None, 0), KEYS)
    for task, version, key, size in [
        ("other", 12, KEYS, 100),
        (TASK, 13, KEYS, 100),
        (TASK, 12, SharedKeys(b"x" * 32), 100),
    ]:
        with pytest.raises(InvalidMessageError):
            open_weights(blob, task, version, key, size)
    with pytest.raises(InvalidMessageError):
        open_weights(blob, TASK, 12, KEYS, max_bytes=23)


def test_weights_that_are_not_finite_are_refused() -> None:
    blob = seal_weights(TASK, 5, Newer(1, {"w": np.array([np.nan])}, None, 0), KEYS)
    with pytest.raises(InvalidMessageError, match="finite"):
        open_weights(blob, TASK, 1, KEYS, 100)
