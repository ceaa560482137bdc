"""Lines of text for a terminal: colours, columns below one another, errors and notices.

stdout and stderr of a command, which may lose their reader: a closed pipe, a closed terminal, a full disk.

A line that is renewed at the foot of a terminal, with events above it; in logs, a line now and then.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TextIO

from rlexp.errors import Notice, RlexpError
from rlexp.text import MOST_LINES, columns_of, first_of, wrapped

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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


_EXIT_CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""What a shell reports of a program that is ended by SIGPIPE, as most are when their pipe is closed."""


class OutputFile(io.FileIO):
    """The file below a standard stream; after the first write that fails, it drops what is written.

    A closed pipe ends the command silently, and other errors are raised, until ``outlive_readers`` is called.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.on_loss: Callable[[OSError], None] | None = None
        """Called once, with the reason, instead of ending the command."""
        self._is_lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._is_lost:
            try:
                return super().write(data)
            except OSError as error:
                self._is_lost = True
                if self.on_loss is not None:
                    self.on_loss(error)
                elif error.errno == errno.EPIPE:
                    raise SystemExit(_EXIT_CLOSED_PIPE) from None
                else:
                    raise
        return memoryview(data).nbytes


def open_output_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams over an OutputFile each.

    Where the command was started without one of the three standard streams, the null device takes its place: else
    the next file that is opened would get its descriptor, and whatever libraries write to stderr.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    sys.stdout = _stream_like(sys.stdout)
    sys.stderr = _stream_like(sys.stderr)


def outlive_readers() -> None:
    """Let the command continue without stdout or stderr once they cannot be written, with a notice on stderr."""
    stdout, stderr = _file_of(sys.stdout), _file_of(sys.stderr)
    if stdout is not None:
        stdout.on_loss = _report_loss_of_stdout
    if stderr is not None:
        stderr.on_loss = lambda error: None


def _stream_like(stream: TextIO | None) -> TextIO:
    """Return a stream as Python opened ``stream`` when it started; None where the command has none."""
    if not isinstance(stream, io.TextIOWrapper):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        return io.TextIOWrapper(io.BufferedWriter(OutputFile(descriptor)), "utf-8", "backslashreplace")
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(OutputFile(stream.fileno())),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _file_of(stream: TextIO) -> OutputFile | None:
    """Return the OutputFile below a stream, None where it has another one."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, OutputFile) else None


def _report_loss_of_stdout(error: OSError) -> None:
    print(f"notice: cannot write to stdout ({error.strerror}); the command continues without it", file=sys.stderr)


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
