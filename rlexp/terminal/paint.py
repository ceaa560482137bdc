"""Colours, where a terminal shows them, and columns below one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TextIO

RED, YELLOW, CYAN, BOLD = "31", "33", "36", "1"


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Return text in a colour where the stream is a terminal and NO_COLOR is not set."""
    return f"\x1b[{colour}m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows as lines, their columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
