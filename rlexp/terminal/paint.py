"""Colours, where a terminal shows them, and columns below one another."""

from __future__ import annotations

import io
import os
from collections.abc import Container, Iterator, Sequence
from typing import TextIO

RED, GREEN, YELLOW, CYAN, BOLD = "31", "32", "33", "36", "1"


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Return text in a colour where the stream is a terminal and NO_COLOR is not set."""
    return f"\x1b[{colour}m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


def visible(text: str) -> str:
    """Return text with what could move the cursor, change colours or turn text round spelt out, as Python does.

    Names, tags and messages may come from files that are anybody's. Ends of lines stay.
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
