"""Errors and notices quote names and texts that may be anybody's."""

from __future__ import annotations

import pytest

from rlexp.errors import Notice, RlexpError
from rlexp.terminal.paint import visible
from rlexp.terminal.problems import print_error, print_notice

ESCAPES = "\x1b[2J\x07\x9b31m\u202e"


def test_a_terminal_obeys_nothing_that_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(RlexpError(f"a trial {ESCAPES}", f"the hint {ESCAPES}"))
    print_notice(Notice(ESCAPES, ESCAPES))
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x07\\x9b31m\\u202e" in said


def test_letters_of_all_languages_and_ends_of_lines_stay() -> None:
    assert visible("Übung 練習\nзавтра 'quoted'") == "Übung 練習\nзавтра 'quoted'"
