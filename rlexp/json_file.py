"""JSON that every reader takes (no NaN, no numpy types), written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import glob
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rlexp.regular_file import read_regular, refuse_other_than_file

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
