"""Errors and notices quote names and texts that may be anybody's."""

from __future__ import annotations

import pytest

from rlexp.errors import ConfigError, Notice, Problem, RlexpError
from rlexp.terminal.lines import print_error, print_notice_list, visible

ESCAPES = "\x1b[2J\x07\x9b31m\u202e"


def test_quoted_control_characters_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(RlexpError(f"a trial {ESCAPES}", f"the hint {ESCAPES}"))
    print_notice_list([Notice(ESCAPES, ESCAPES)], "")
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x07\\x9b31m\\u202e" in said


@pytest.mark.parametrize(
    ("count", "last"), [(20, "error: g.yaml:19  no"), (21, "error: … and 1 more errors; rlexp check --json prints all")]
)
def test_error_prints_20_problems_and_the_number_of_the_others(
    count: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_error(ConfigError([Problem(f"g.yaml:{number}", "no") for number in range(count)]))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == min(count, 20) + (count > 20)
    assert lines[-1] == last


def test_notice_list_prints_the_first_and_counts_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice_list([Notice(f"a.yaml:{line}:1", "old") for line in range(500)], "; --json prints all")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "notice: … and 480 more notices; --json prints all"


def test_visible_keeps_letters_of_all_languages_and_line_ends() -> None:
    assert visible("Übung 練習\nзавтра 'quoted'") == "Übung 練習\nзавтра 'quoted'"
