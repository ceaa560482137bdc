"""Files: JSON that is written whole or not at all, reading what a stranger may have made, and the size of a folder.

Every reader takes the JSON: no NaN, no numpy types. Of a stranger's files only regular ones are opened: a pipe would
keep its reader waiting, a device never ends, and a file of holes has more bytes than fit into memory. Written to, a
device, a link or a pipe would be replaced by a file.
"""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

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


_MOST_NESTED: Final = 100
"""Levels of lists and objects: far less than what Python could read and then neither walk through nor write."""
_ABANDONED_S: Final = 600.0
"""Nobody needs so long to write one."""
_TOO_DEEP: Final = f"it is nested more than {_MOST_NESTED} levels deep"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as strict JSON text; see :func:`plain` for what becomes of numpy values and NaN."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Return ``value`` made of JSON's own types: arrays as lists, NaN and infinities as None, anything else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # of NumPy, which commands that only read files need not import
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def read_json(path: Path) -> Any:
    """Return the contents of a file; raises OSError where it cannot be read, ValueError where it does not hold JSON.

    What is no regular file, or has more than 256 MiB, cannot be read.
    """
    return parse_json(read_regular(path))


def parse_json(text: str | bytes) -> Any:
    """Return the contents of a JSON text; raises ValueError where it is none.

    That goes for a key that stands twice too, as readers differ in which one counts, and for more than 100 levels.
    """
    try:
        content = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [content]
    for _ in range(_MOST_NESTED + 1):
        level = [child for item in level if isinstance(item, dict | list) for child in _children(item)]
        if not level:
            return content
    raise ValueError(_TOO_DEEP)


def _children(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return item.values() if isinstance(item, dict) else item


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"key {key!r} is given twice")
        content[key] = value
    return content


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, by :func:`replace_bytes`."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, by :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block what is there gets the name ``path``.

    A reader, or a crash at any moment, sees all of it or the file as it was, also where the block raises.
    Deletes what a process that was killed has left of such a file. Raises OSError where ``path`` is a device, a link, a
    pipe or a directory.
    """
    refuse_other_than_file(path)
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        yield temporary
        sync(temporary)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _remove_abandoned(path: Path) -> None:
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.writing"):
        with suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _ABANDONED_S:
                temporary.unlink()


def replace_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, by :func:`replace_text`."""
    replace_text(path, to_json(value, indent=2) + "\n")


def sync(path: Path) -> None:
    """Wait until the file, or the names in the directory, at ``path`` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_below(folder: Path, most_entries: float = math.inf) -> tuple[int, bool]:
    """Return the bytes of the files below ``folder``, and whether these are all.

    With more than ``most_entries`` files and folders they are not. Those that are removed meanwhile or cannot be read
    are left out, and links are not followed.
    """
    total = number = 0
    folders = [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                number += 1
                if number > most_entries:
                    return total, False
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total, True
