"""Rows of the replay library's tests: they say in every column which one they are."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import Array

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
