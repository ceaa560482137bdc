"""Errors: what is wrong, where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlexp.errors import Notice, RlexpError
from rlexp.line_width import columns_of, wrapped
from rlexp.number_format import MOST_LINES, first_of
from rlexp.terminal.paint import CYAN, RED, YELLOW, painted, visible


def print_error(error: RlexpError) -> None:
    """Print what is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    for problem in error.problems[:MOST_LINES]:
        where = f"{problem.where}  " if problem.where else ""
        _print("error:", RED, where + problem.message)
        if problem.hint:
            _print("hint: ", CYAN, problem.hint)
    if left_out := len(error.problems[MOST_LINES:]):
        _print("error:", RED, f"… and {left_out:,} more errors; rlexp check --json prints all")


def print_notice_list(notices: Sequence[Notice], rest: str) -> None:
    """Print the first notices to stderr, a line each, then how many are left out and, by ``rest``, where they are."""
    for line in first_of([f"{notice.where}  {notice.message}" for notice in notices], f" notices{rest}"):
        _print("notice:", YELLOW, line)


def print_notice(notice: Notice) -> None:
    """Print a notice to stderr."""
    print_notice_list([notice], "")


def _print(label: str, colour: str, text: str) -> None:
    """Print a label and a text to stderr; on a terminal, lines are broken between words and continue below the text."""
    margin = len(label) + 1
    shown = wrapped(visible(text), columns_of(sys.stderr), " " * margin, margin)
    print(f"{painted(label, colour, sys.stderr)} {shown}", file=sys.stderr)
