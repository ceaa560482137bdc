"""Lines of text for a terminal: colours, columns below one another, errors and notices."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Container, Iterator, Sequence
from typing import TextIO

from rlexp.errors import Notice, RlexpError
from rlexp.text import MOST_LINES, columns_of, first_of, wrapped

RED, GREEN, YELLOW, CYAN, BOLD = "31", "32", "33", "36", "1"


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Return text in a colour where the stream is a terminal and NO_COLOR is not set."""
    return f"\x1b[{colour}m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


def visible(text: str) -> str:
    """Return text with what could move the cursor, change colours or turn text round spelt out, as Python does.

    Names, tags and messages may come from untrusted files. Ends of lines stay.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )


def aligned(rows: Sequence[Sequence[str]], to_the_right: Container[int] = ()) -> Iterator[str]:
    """Yield the rows as lines, their columns below one another; those numbered in ``to_the_right`` end there."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(
            cell.rjust(width) if column in to_the_right else cell.ljust(width) for column, (cell, width) in cells
        ).rstrip()


def tolerate_unknown_letters(stream: TextIO) -> None:
    """Let a stream write ``?`` for what its encoding does not have, where it would raise an error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


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
