"""A line that is renewed at the foot of a terminal, with events above it; in logs, a line now and then."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TextIO

from rlexp.terminal.lines import visible
from rlexp.text import columns_of

_CLEAR_LINE: Final = "\r\x1b[K"
_ON_TERMINALS_S: Final = 1.0
_IN_LOGS_S: Final = 10.0


class StatusLine:
    """Owns the last line of a stream until ``close``; used by one thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_open = False
        self.period_s = _ON_TERMINALS_S if self._is_terminal else _IN_LOGS_S
        """Seconds between two lines, at least."""

    @property
    def columns(self) -> int | None:
        """How long the line may be; None: it may be of any length."""
        columns = columns_of(self._stream)
        return None if columns is None else columns - 1  # the last cell is the cursor's

    def show(self, line: str) -> None:
        """Put ``line`` in place of the one before, cut to the terminal's width; a log gets another line."""
        text = visible(line)
        if not self._is_terminal:
            self._print(text)
            return
        self._is_open = True
        self._stream.write(f"{_CLEAR_LINE}{text[: self.columns]}")
        self._stream.flush()

    def print_above(self, text: str) -> None:
        """Print an event with its time, which stays."""
        if self._is_open:
            self._is_open = False
            self._stream.write(_CLEAR_LINE)
        self._print(visible(text))

    def close(self) -> None:
        """Leave the cursor on a line of its own; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._stream.write("\n")
            self._stream.flush()

    def _print(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", file=self._stream, flush=True)
