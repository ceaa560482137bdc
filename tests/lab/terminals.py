"""Terminals for tests: one that only says it is one, and one that shows what was written to it, in a window."""

from __future__ import annotations

import io
import re
from itertools import pairwise

_TOKEN = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<letter>[A-Za-z])|(?P<other>.)", re.DOTALL)


class Terminal(io.StringIO):
    """Keeps what is written."""

    def isatty(self) -> bool:
        return True


class Window(Terminal):
    """Shows what is written in rows of ``width``; like most terminals, it breaks long rows when it becomes narrower.

    It knows what the live display uses: carriage return, line feed, cursor up and down, erase the line.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._rows = [""]
        self._row = self._column = 0

    @property
    def shown(self) -> list[str]:
        """Every row, without spaces at its end and without empty rows at the bottom."""
        text = "\n".join(row.rstrip() for row in self._rows)
        return text.rstrip("\n").split("\n")

    def write(self, text: str) -> int:
        for match in _TOKEN.finditer(text):
            if match["letter"]:
                self._control(match["letter"], match["numbers"])
            else:
                self._put(match["other"])
        return len(text)

    def resize(self, width: int) -> None:
        """Break the rows that have become too long; the cursor stays with its character."""
        rows: list[str] = []
        for number, row in enumerate(self._rows):
            if number == self._row:
                line, self._column = divmod(self._column, width)
                cursor = len(rows) + line
            starts = range(0, max(len(row), 1) + width, width)
            rows += [row[start:end] for start, end in pairwise(starts) if start == 0 or row[start:end]]
        self._rows, self._row, self.width = rows, cursor, width

    def _control(self, letter: str, numbers: str) -> None:
        if letter == "A":
            self._row = max(self._row - int(numbers or 1), 0)
        elif letter == "K":
            self._rows[self._row] = ""
        elif letter not in ("m", "h", "l"):
            raise AssertionError(f"the window does not know ESC[{numbers}{letter}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
            self._rows += [""] * (self._row + 1 - len(self._rows))
        else:
            if self._column == self.width:
                self._put("\n")
            row = self._rows[self._row].ljust(self._column)
            self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1
