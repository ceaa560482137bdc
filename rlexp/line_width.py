"""How many columns a line may have on a terminal, and long text in lines of so many."""

from __future__ import annotations

import os
import textwrap
from typing import Final, TextIO

_USUAL: Final = 80
"""Columns of a terminal that does not report its width."""
_SHORTEST_LINE: Final = 20
"""What is left beside an indentation on the narrowest terminals."""


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal that ``stream`` is; None where it is none: programs read whole lines.

    The environment variable COLUMNS says another width, as for other programs.
    """
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except OSError:
        return _USUAL


def wrapped(text: str, columns: int | None, indent: str = "", first: int = 0) -> str:
    """Return ``text`` broken between words into lines of at most ``columns``; as it is where that is None.

    All lines but the first begin with ``indent``; the first has ``first`` columns less. A word that is longer than a
    line stays whole: it may be a path or a command to copy.
    """
    if columns is None:
        return text
    width = max(columns, len(indent) + _SHORTEST_LINE)
    lines = []
    for number, line in enumerate(text.split("\n")):
        lead = indent if number else " " * first
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=lead,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).removeprefix(" " * first)
