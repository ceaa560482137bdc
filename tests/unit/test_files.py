"""A file that is to hold JSON is read, or is an error at once; states are split into arrays and values, and joined."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import files
from rlexp.files import parse_json, read_json, replace_text, to_json
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


def test_what_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"a": [1, null]}', encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert read_json(tmp_path / "file") == read_json(tmp_path / "link") == {"a": [1, None]}


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":' * 10**5, f"[{'9' * 5000}]", "\0", '[{"a": 1, "a": 1}]', "[" * 102 + "]" * 102]
)
def test_what_is_no_json_is_an_error_of_one_kind(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read_json(tmp_path / "file")


def test_deepest_content_that_is_read_can_be_walked_through_and_written() -> None:
    text = '{"a": [' * 50 + "1" + "]}" * 50
    assert to_json(parse_json(text)) == text
    for deeper in (f"[{text}]", "[[" * 450 + "]]" * 450):  # the last one is no problem for Python's own reader
        with pytest.raises(ValueError, match="more than 100 levels"):
            parse_json(deeper)


def test_a_key_that_is_given_twice_among_many_is_found_at_once() -> None:
    keys = [*range(100_000), 99_999]
    text = "{" + ", ".join(f'"{key}": 0' for key in keys) + "}"
    with pytest.raises(ValueError, match="key '99999' is given twice"):
        parse_json(text)


def test_pipes_devices_and_directories_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "endless"):
        with pytest.raises(OSError, match="not a regular file"):
            read_json(path)
    with pytest.raises(OSError, match="directory"):
        read_json(tmp_path)


def test_a_file_beyond_all_bounds_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.read_regular, "__defaults__", (10,))
    (tmp_path / "file").write_text("[1, 2, 3, 4]", encoding="utf-8")
    with pytest.raises(OSError, match="more than"):
        read_json(tmp_path / "file")


def test_what_a_killed_process_left_of_a_file_goes_with_the_next_write(tmp_path: Path) -> None:
    old, new, other = (tmp_path / f".{name}.writing" for name in ("a[1].html.12", "a[1].html.13", "b.html.12"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    replace_text(tmp_path / "a[1].html", "ä")
    assert (tmp_path / "a[1].html").read_bytes() == "ä".encode()
    assert {path.name for path in tmp_path.iterdir()} == {"a[1].html", new.name, other.name}
