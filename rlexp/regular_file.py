"""Files that a stranger may have made, opened for reading; and the places where a new file may replace what is there.

A pipe would keep its reader waiting, a device never ends, and a file of holes has more bytes than fit into memory.
Written to, a device, a link or a pipe would be replaced by a file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 256 << 20
"""Of a file that is read as a whole: more than any of ours has."""
_MOST_BYTES_OF_LINES: Final = 8 << 30
_LONGEST_LINE: Final = 16 << 20
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class RefusedFileError(OSError):
    """The file can be opened, but is not read: it is no regular file, or too large."""

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path, most_bytes: int | None = MOST_BYTES) -> BufferedReader:
    """Open a file for reading; raises OSError where it cannot be read, is no regular file or has too many bytes."""
    _refuse_irregular(path, os.stat(path))  # opening a device can have effects
    # O_NONBLOCK: a pipe without a writer, put there since, would otherwise block right here.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        _refuse_irregular(path, about)
        if most_bytes is not None and about.st_size > most_bytes:
            raise _refused(path, f"it has more than {most_bytes >> 20:,} MiB")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the contents of a file; raises OSError as :func:`open_regular` does."""
    with open_regular(path, most_bytes) as file:
        return file.read()


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, one that is longer than 16 MiB in pieces; raises OSError as ``open_regular`` does."""
    with open_regular(path, _MOST_BYTES_OF_LINES) as file:
        yield from iter(partial(file.readline, _LONGEST_LINE), b"")


def refuse_other_than_file(path: Path) -> None:
    """Raise OSError where something is at ``path`` that is no regular file: a new one must not replace it."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    _refuse_irregular(path, about)


def _refuse_irregular(path: Path, about: os.stat_result) -> None:
    what = _kind(about.st_mode)
    if what is not None:
        raise _refused(path, f"it is {what}, not a regular file")


def _kind(mode: int) -> str | None:
    """Return what has such a mode, None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((name for matches, name in _KINDS if matches(mode)), "no file")


def _refused(path: Path, reason: str) -> RefusedFileError:
    return RefusedFileError(errno.EINVAL, reason, str(path))
