"""The part of a terminal that is drawn again and again, below what was printed; also when its window changes."""

from __future__ import annotations

import math
from threading import RLock

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

_ERASE_LINE = 2
"""ANSI's parameter for a whole line."""


class Canvas:
    """Owns the last lines of a terminal between its first drawing and ``close``; calls may come from any thread.

    Before ``open`` it is a single line, the cursor stays visible, and a process that is killed leaves the terminal as
    it should be.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._lock = RLock()
        self._drawn: Text | None = None
        self._width = console.width

    def open(self) -> None:
        """Make room for pictures of several lines."""
        with self._lock:
            self._erase_single_line()
            self._live.start()

    def draw(self, text: Text) -> None:
        """Replace what was drawn; no line of ``text`` is wider than the terminal."""
        with self._lock:
            if not self._live.is_started:
                self._erase_single_line()
                self._console.print(text, end="", soft_wrap=True)
            else:
                self._go_back_over_wrapped_lines()
                # The cursor waits on a line of its own, so that an echo, such as ^C, wraps no line of the picture.
                self._live.update(text + "\n", refresh=True)
            self._drawn, self._width = text, self._console.width

    def print_above(self, text: Text) -> None:
        """Print a line that stays."""
        with self._lock:
            if self._live.is_started:
                self._go_back_over_wrapped_lines()
            else:
                self._erase_single_line()
            self._console.print(text)

    def close(self) -> None:
        """Erase what was drawn and show the cursor; a second call does nothing."""
        with self._lock:
            if self._live.is_started:
                self._go_back_over_wrapped_lines()
            else:
                self._erase_single_line()
            self._live.stop()
            self._drawn = None

    def _erase_single_line(self) -> None:
        if self._drawn is not None and not self._live.is_started:
            self._go_back_over_wrapped_lines()
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, _ERASE_LINE)))
            self._drawn = None

    def _go_back_over_wrapped_lines(self) -> None:
        """Erase the lines that a narrower window has made of one, so that the picture begins where it began.

        Terminals break a line that has become too long; the library counts lines as they were written.
        """
        width = self._console.width
        if self._drawn is None or width >= self._width:
            return
        added = sum(math.ceil(line.cell_len / width) - 1 for line in self._drawn.split("\n") if line.cell_len)
        for _ in range(added):
            self._console.control(
                Control(
                    ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, _ERASE_LINE), (ControlType.CURSOR_UP, 1)
                )
            )
        self._width = width
