"""Errors: what is wrong, where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlexp.errors import Notice, RlexpError
from rlexp.number_format import MOST_LINES, first_of
from rlexp.terminal.paint import CYAN, RED, YELLOW, painted, visible


def print_error(error: RlexpError) -> None:
    """Print what is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    label = painted("error:", RED, sys.stderr)
    for problem in error.problems[:MOST_LINES]:
        where = f"{problem.where}  " if problem.where else ""
        print(f"{label} {visible(where + problem.message)}", file=sys.stderr)
        if problem.hint:
            print(f"{painted('hint:', CYAN, sys.stderr)}  {visible(problem.hint)}", file=sys.stderr)
    if left_out := len(error.problems[MOST_LINES:]):
        print(f"{label} … and {left_out:,} more errors; rlexp check --json prints all", file=sys.stderr)


def print_notice_list(notices: Sequence[Notice], rest: str) -> None:
    """Print the first notices to stderr, a line each, then how many are left out and, by ``rest``, where they are."""
    lines = [f"{notice.where}  {notice.message}" for notice in notices]
    for line in first_of(lines, f" notices{rest}"):
        print(f"{painted('notice:', YELLOW, sys.stderr)} {visible(line)}", file=sys.stderr)


def print_notice(notice: Notice) -> None:
    """Print a notice to stderr, in a line."""
    print_notice_list([notice], "")
