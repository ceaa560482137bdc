"""Errors: what is wrong, where, and what to do."""

from __future__ import annotations

import sys

from rlexp.errors import Notice, RlexpError
from rlexp.terminal.paint import CYAN, RED, YELLOW, painted, visible


def print_error(error: RlexpError) -> None:
    """Print everything that is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    for problem in error.problems:
        where = f"{problem.where}  " if problem.where else ""
        print(f"{painted('error:', RED, sys.stderr)} {visible(where + problem.message)}", file=sys.stderr)
        if problem.hint:
            print(f"{painted('hint:', CYAN, sys.stderr)}  {visible(problem.hint)}", file=sys.stderr)


def print_notice(notice: Notice) -> None:
    """Print a line to stderr."""
    print(f"{painted('notice:', YELLOW, sys.stderr)} {visible(f'{notice.where}  {notice.message}')}", file=sys.stderr)
