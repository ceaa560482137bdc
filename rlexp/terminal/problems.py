"""Errors: what is wrong, where, and what to do."""

from __future__ import annotations

import sys

from rlexp.errors import RlexpError
from rlexp.terminal.paint import CYAN, RED, painted


def print_error(error: RlexpError) -> None:
    """Print everything that is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    for problem in error.problems:
        where = f"{problem.where}  " if problem.where else ""
        print(f"{painted('error:', RED, sys.stderr)} {where}{problem.message}", file=sys.stderr)
        if problem.hint:
            print(f"{painted('hint:', CYAN, sys.stderr)}  {problem.hint}", file=sys.stderr)
