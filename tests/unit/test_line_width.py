"""Lines on terminals are broken between words; elsewhere they stay whole."""

from __future__ import annotations

import io

import pytest

from rlexp.text import columns_of, wrapped
from tests.terminals import Terminal

TEXT = "file.yaml:3:8  unknown key lrr (agent DQN); did you mean lr? --num-samples"


def test_columns_are_those_of_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert columns_of(io.StringIO()) is None
    assert columns_of(Terminal()) == 33
    monkeypatch.setenv("COLUMNS", "wide")
    assert columns_of(Terminal()) == 80


def test_no_line_is_too_long_and_no_word_is_cut() -> None:
    lines = wrapped(TEXT, 30, " " * 7, 7).splitlines()
    assert max(map(len, lines)) <= 30
    assert len(lines[0]) <= 23
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert " ".join(lines).split() == TEXT.split()


def test_without_a_width_a_text_stays_as_it_is() -> None:
    assert wrapped(TEXT * 9, None, "  ", 7) == TEXT * 9


def test_a_word_longer_than_a_line_stays_whole() -> None:
    path = "/results/" + "x" * 60
    assert wrapped(f"see {path} now", 40, "  ").splitlines() == ["see", f"  {path}", "  now"]


def test_ends_of_lines_and_empty_lines_stay() -> None:
    assert wrapped("a\n\nb", 40, "  ", 3) == "a\n\n  b"
