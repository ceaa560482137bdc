"""Lines on a terminal: colours, tables, errors and notices, an updated line, and streams that lose their reader.

All output of a command goes through here; the other files of this room have its content.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TextIO

from rlexp.errors import Notice, RlexpError
from rlexp.text import MOST_LINES, columns_of, first_of, middle_cut, wrapped

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RED, GREEN, YELLOW, CYAN, BOLD = "31", "32", "33", "36", "1"
_SHORTEST_NAME: Final = 12


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Return text in a colour if the stream is a terminal and NO_COLOR is not set."""
    return f"\x1b[{colour}m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


def visible(text: str) -> str:
    """Return text with control characters escaped as in Python, as they could move the cursor, colour or reverse text.

    Names, tags and messages may come from untrusted files. Newlines stay.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )


def in_a_cell(text: str) -> str:
    """Return text as ``visible`` does, on one line."""
    return visible(text).replace("\n", "\\n")


def aligned(rows: Sequence[Sequence[str]], to_the_right: Container[int] = ()) -> Iterator[str]:
    """Yield the rows as lines with aligned columns; columns in ``to_the_right`` are right-aligned."""
    rows = [[in_a_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(
            cell.rjust(width) if column in to_the_right else cell.ljust(width) for column, (cell, width) in cells
        ).rstrip()


@dataclass(frozen=True)
class Table:
    """A table of things with a name and a status, with as many columns as fit; statuses in colours."""

    columns: Sequence[str]
    """Titles of the columns; a row has a cell for each."""
    by_need: Sequence[str]
    """Columns in the order of importance on a narrow terminal; the first has the names."""
    numbers: Container[str]
    """Right-aligned columns."""
    colours: Mapping[str, str]
    """Colours of words in the column ``status``."""
    least: int = 1
    """Least number of ``by_need`` columns on the narrowest terminal."""
    decent_name: int | None = None
    """Length to which names may be cut to show more columns; None: names are never cut."""

    def lines(self, rows: Sequence[Mapping[str, str]], stream: TextIO) -> Iterator[str]:
        """Yield the titles, then a line for each row; whole if ``stream`` is not a terminal."""
        width, columns = columns_of(stream), list(self.columns)
        if width is not None:
            columns = self._fitting(rows, width)
            rows = self._with_names_cut(rows, columns, width)
        cells = [[row[column] for column in columns] for row in rows]
        header, *lines = aligned(
            [columns, *cells], {place for place, column in enumerate(columns) if column in self.numbers}
        )
        yield header
        start = sum(_width(rows, column) + 2 for column in takewhile("status".__ne__, columns))
        for row, line in zip(rows, lines, strict=True):
            status, colour = row["status"], self.colours.get(row["status"])
            if colour is None or "status" not in columns:
                yield line
            else:
                yield f"{line[:start]}{painted(status, colour, stream)}{line[start + len(status) :]}"

    def _fitting(self, rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
        """Return the columns that fit, in their order."""
        chosen: set[str] = set()
        taken = -2
        for column in self.by_need:
            needed = _width(rows, column)
            taken += 2 + (needed if chosen or self.decent_name is None else min(needed, self.decent_name))
            if len(chosen) >= self.least and taken > width:
                break
            chosen.add(column)
        return [column for column in self.columns if column in chosen]

    def _with_names_cut(
        self, rows: Sequence[Mapping[str, str]], columns: Sequence[str], width: int
    ) -> Sequence[Mapping[str, str]]:
        if self.decent_name is None:
            return rows
        name = self.by_need[0]
        room = max(width - sum(_width(rows, column) + 2 for column in columns if column != name), _SHORTEST_NAME)
        return [{**row, name: middle_cut(row[name], room)} for row in rows]


def _width(rows: Sequence[Mapping[str, str]], column: str) -> int:
    return max(len(column), *(len(row[column]) for row in rows))


def tolerate_unknown_letters(stream: TextIO) -> None:
    """Let a stream write ``?`` for letters that its encoding lacks, instead of raising an error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def print_error(error: RlexpError) -> None:
    """Print an error to stderr: an ``error:`` line for each problem, with a ``hint:`` line if there is one."""
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


def print_setting(label: str, text: str) -> None:
    """Print to stderr a setting of a command, after a label such as ``settings:``."""
    _print(label, CYAN, text)


def _print(label: str, colour: str, text: str) -> None:
    """Print a label and a text to stderr; on a terminal, lines are broken between words and continue below the text."""
    margin = len(label) + 1
    shown = wrapped(visible(text), columns_of(sys.stderr), " " * margin, margin)
    print(f"{painted(label, colour, sys.stderr)} {shown}", file=sys.stderr)


_EXIT_CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code in a shell of a program that SIGPIPE ends, as most programs do when their pipe is closed."""


class OutputFile(io.FileIO):
    """The file below a standard stream; after the first failed write, it drops all output.

    A closed pipe ends the command silently, and other errors are raised, until ``outlive_readers`` is called.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.on_loss: Callable[[OSError], None] | None = None
        """A function that is called once, with the reason, instead of ending the command."""
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

    If the command was started without one of the three standard streams, the null device replaces it. Otherwise the
    next opened file would get its descriptor, and the output of libraries to stderr.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    sys.stdout = _stream_like(sys.stdout)
    sys.stderr = _stream_like(sys.stderr)


def outlive_readers() -> None:
    """Let the command continue if stdout or stderr cannot be written any more, with a notice on stderr."""
    stdout, stderr = _file_of(sys.stdout), _file_of(sys.stderr)
    if stdout is not None:
        stdout.on_loss = _report_loss_of_stdout
    if stderr is not None:
        stderr.on_loss = lambda error: None


def _stream_like(stream: TextIO | None) -> TextIO:
    """Return a stream as Python opened ``stream`` at its start; None if the command has none."""
    if not isinstance(stream, io.TextIOWrapper):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        return io.TextIOWrapper(io.BufferedWriter(OutputFile(descriptor)), "utf-8", "backslashreplace")
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(OutputFile(stream.fileno())),
        stream.encoding,
        # Names and values may have letters that the encoding lacks.
        "backslashreplace" if stream.errors in ("strict", "surrogateescape") else stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _file_of(stream: TextIO) -> OutputFile | None:
    """Return the OutputFile below a stream; None if it has another file."""
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
        """Least seconds between two lines."""

    @property
    def columns(self) -> int | None:
        """Most columns of the line; None: any number."""
        columns = columns_of(self._stream)
        return None if columns is None else columns - 1  # the last cell is for the cursor

    def show(self, line: str) -> None:
        """Replace the previous line by ``line``, cut to the terminal's width; a log gets another line."""
        text = visible(line)
        if not self._is_terminal:
            self._print(text)
            return
        self._is_open = True
        self._stream.write(f"{_CLEAR_LINE}{text[: self.columns]}")
        self._stream.flush()

    def print_above(self, text: str) -> None:
        """Print an event with its time, which stays."""
        self.erase()
        self._print(visible(text))

    def erase(self) -> None:
        """Leave an empty line in its place; idempotent."""
        self._end_with(_CLEAR_LINE)

    def close(self) -> None:
        """Leave the cursor on a line of its own; idempotent."""
        self._end_with("\n")

    def _end_with(self, text: str) -> None:
        if self._is_open:
            self._is_open = False
            self._stream.write(text)
            self._stream.flush()

    def _print(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", file=self._stream, flush=True)
