"""States are split into arrays and values, and joined again; the layout is that of checkpoints of earlier versions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlexp.states import LazyArray, join_state, rows_of, split_state

STATE: dict[str, Any] = {
    "a": np.arange(3),
    "b": {"c": [1, None, np.ones((2, 2), np.float32)], "d": "text"},
    "e": (0.1, True),
}


def test_split_state_names_entries_by_key_and_deeper_arrays_by_path() -> None:
    arrays, values = split_state(STATE)
    assert arrays.keys() == {"a", "b.c.2"}
    assert values == {"b": {"c": [1, None, {"$array": "b.c.2"}], "d": "text"}, "e": [0.1, True]}


def test_join_state_inverts_split_state() -> None:
    arrays, values = split_state(STATE)
    joined = join_state(arrays, json.loads(json.dumps(values)))
    np.testing.assert_equal(joined, {**STATE, "e": [0.1, True]})
    assert joined["a"] is STATE["a"]


def test_join_state_accepts_a_named_entry() -> None:
    joined = join_state({"a": np.arange(3)}, {"a": {"$array": "a"}})
    np.testing.assert_equal(joined, {"a": np.arange(3)})


def test_split_state_keeps_lazy_arrays_unread() -> None:
    def read(start: int, stop: int) -> Any:
        return np.arange(start, stop)

    lazy = LazyArray((5,), np.dtype(np.int64), read)
    arrays, values = split_state({"x": lazy, "y": {"z": lazy}})
    joined = join_state(arrays, values)
    assert joined == {"x": lazy, "y": {"z": lazy}}
    assert rows_of(joined["x"], 1, 3).tolist() == [1, 2]


def test_split_state_refuses_two_arrays_of_one_name() -> None:
    with pytest.raises(ValueError, match=r"two arrays of a state are called 'a.b'"):
        split_state({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}})


def test_join_state_raises_for_a_missing_array() -> None:
    with pytest.raises(KeyError):
        join_state({}, split_state(STATE)[1])
