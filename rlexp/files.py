"""Files: JSON that is written whole or not at all, reading of a stranger's files, and the size of a folder.

Every reader accepts the JSON: no NaN, no numpy types. Only regular files of a stranger are opened: a pipe would block
its reader, a device never ends, and a sparse file has more bytes than fit into memory. A device, a link or a pipe is
not replaced by a written file.
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
"""Most bytes of a file that is read as a whole; none of our files has more."""
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
    """Raised for a file that could be opened but is not read: it is not a regular file, or too large."""

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path, most_bytes: int | None = MOST_BYTES) -> BufferedReader:
    """Open a file; raises OSError if it cannot be read, is not a regular file or has too many bytes."""
    _refuse_irregular(path, os.stat(path))  # opening a device can have effects
    # O_NONBLOCK, as a pipe without a writer that was put there since would block here.
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
    """Yield the lines of a file, longer ones than 16 MiB in pieces; raises OSError as ``open_regular`` does."""
    with open_regular(path, _MOST_BYTES_OF_LINES) as file:
        yield from iter(partial(file.readline, _LONGEST_LINE), b"")


def refuse_other_than_file(path: Path) -> None:
    """Raise OSError if ``path`` is not a regular file, as a new file must not replace it."""
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
    """Return the kind of file with such a mode; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((name for matches, name in _KINDS if matches(mode)), "no file")


def _refused(path: Path, reason: str) -> RefusedFileError:
    return RefusedFileError(errno.EINVAL, reason, str(path))


_MOST_NESTED: Final = 100
"""Most levels of lists and objects: far less than Python could read and then neither walk through nor write."""
_ABANDONED_S: Final = 600.0
"""Seconds after which an unfinished file is abandoned; no write takes so long."""
_TOO_DEEP: Final = f"it is nested more than {_MOST_NESTED} levels deep"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as strict JSON text; see :func:`plain` for numpy values and NaN."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Return ``value`` made of JSON's own types: arrays as lists, NaN and infinities as None, anything else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's, which commands that only read files need not import
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def read_json(path: Path) -> Any:
    """Return the contents of a file; raises OSError if it cannot be read, ValueError if it is not JSON.

    A file that is not regular, or has more than 256 MiB, cannot be read.
    """
    return parse_json(read_regular(path))


def parse_json(text: str | bytes) -> Any:
    """Return the contents of a JSON text; raises ValueError if it is not valid.

    Also for a repeated key, as readers differ in which one they use, and for more than 100 levels.
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
    """Yield a path to write to; replace ``path`` by it atomically on success.

    After a crash or an exception, ``path`` is either the old or the whole new file. Deletes remains of a killed write.
    Raises OSError if ``path`` is a device, a link, a pipe or a directory.
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
    """Return the bytes of the files below ``folder``, and whether all were counted.

    At most ``most_entries`` files and folders are counted. Files that are removed meanwhile or cannot be read are left
    out, and links are not followed.
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
