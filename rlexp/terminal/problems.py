"""Errors: what is wrong, where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlexp.errors import Notice, RlexpError
from rlexp.terminal.paint import CYAN, RED, YELLOW, painted, visible

MOST_SHOWN = 20
"""Problems or notices that are printed; of more, the number."""


def print_error(error: RlexpError) -> None:
    """Print what is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    for problem in error.problems[:MOST_SHOWN]:
        where = f"{problem.where}  " if problem.where else ""
        print(f"{painted('error:', RED, sys.stderr)} {visible(where + problem.message)}", file=sys.stderr)
        if problem.hint:
            print(f"{painted('hint:', CYAN, sys.stderr)}  {visible(problem.hint)}", file=sys.stderr)
    if more := len(error.problems[MOST_SHOWN:]):
        print(f"{painted('error:', RED, sys.stderr)} and {more} more; rlexp check --json shows all", file=sys.stderr)


def print_notices(notices: Sequence[Notice]) -> None:
    """Print notices to stderr, a line each."""
    for notice in notices[:MOST_SHOWN]:
        print_notice(notice)
    if more := len(notices[MOST_SHOWN:]):
        print(
            f"{painted('notice:', YELLOW, sys.stderr)} and {more} more; rlexp check --json shows all", file=sys.stderr
        )


def print_notice(notice: Notice) -> None:
    """Print a line to stderr."""
    print(f"{painted('notice:', YELLOW, sys.stderr)} {visible(f'{notice.where}  {notice.message}')}", file=sys.stderr)
