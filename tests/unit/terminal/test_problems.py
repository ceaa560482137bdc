"""Errors and notices quote names and texts that may be anybody's."""

from __future__ import annotations

import pytest

from rlexp.errors import ConfigError, Notice, Problem, RlexpError
from rlexp.terminal.paint import visible
from rlexp.terminal.problems import print_error, print_notice, print_notices

ESCAPES = "\x1b[2J\x07\x9b31m\u202e"


def test_a_terminal_obeys_nothing_that_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(RlexpError(f"a trial {ESCAPES}", f"the hint {ESCAPES}"))
    print_notice(Notice(ESCAPES, ESCAPES))
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x07\\x9b31m\\u202e" in said


@pytest.mark.parametrize(
    ("count", "last"), [(20, "error: g.yaml:19  no"), (21, "error: and 1 more; rlexp check --json shows all")]
)
def test_error_prints_20_problems_and_the_number_of_the_others(
    count: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_error(ConfigError([Problem(f"g.yaml:{number}", "no") for number in range(count)]))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == min(count, 20) + (count > 20)
    assert lines[-1] == last


def test_notices_are_20_and_the_number_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_notices([Notice(f"g.yaml:{number}", "so") for number in range(5000)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[19:] == ["notice: g.yaml:19  so", "notice: and 4980 more; rlexp check --json shows all"]


def test_letters_of_all_languages_and_ends_of_lines_stay() -> None:
    assert visible("Übung 練習\nзавтра 'quoted'") == "Übung 練習\nзавтра 'quoted'"
