"""stdout and stderr of a command, which may lose their reader: a closed pipe, a closed terminal, a full disk."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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
