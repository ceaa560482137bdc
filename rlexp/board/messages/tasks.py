"""The content of a board: tasks and their rows, which every board checks in the same way, and blobs.

A blob, such as weights or a checkpoint, is too large for one value. It is stored in chunks whose hash is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from rlexp.files import to_json

MAX_DESCRIPTION_BYTES: Final = 1 << 20
"""Most bytes of a description and a file together."""

MAX_ROW_BYTES: Final = 1 << 16

KEPT_ROWS: Final = 1000

KEPT_S: Final = 7 * 24 * 3600
"""Seconds for which a board keeps a task that is over, or that nobody has trained: a week."""

MOST_SEATS: Final = 10_000

CHUNK_BYTES: Final = 4 << 20
MAX_BLOB_BYTES: Final = 1 << 30

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Task:
    """The task that a trainer announces, or somebody submits."""

    id: str
    """Letters, digits, ``-`` and ``_``, at most 64 of them; unique."""
    name: str
    """The displayed name: the experiment's name."""
    num_seats: int
    """Most actors, from 1 on."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """The information for an actor, of JSON's own types; empty if no trainer has begun yet."""
    file: str = ""
    """The experiment of a submitted task, as YAML, 1 MiB with the description; empty if its trainer has the file."""


def is_name(name: str) -> bool:
    """Return whether ``name`` is a valid id of a task or name of a blob."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return ``name``; raises ValueError if it is not a valid id of a task or name of a blob."""
    if not is_name(name):
        raise ValueError(f"{name[:80]!r} has other characters than letters, digits, - and _, or more than 64")
    return name


def check_task(task: Task) -> Task:
    """Return ``task``; raises ValueError if a part of it is not allowed."""
    check_name(task.id)
    if not 1 <= task.num_seats <= MOST_SEATS:
        raise ValueError(f"a task of {task.num_seats} seats; 1 to {MOST_SEATS} are allowed")
    if not isinstance(task.description, Mapping):
        raise ValueError("the description of a task is not an object")
    if len(to_json(task.description)) + len(task.file.encode()) > MAX_DESCRIPTION_BYTES:
        raise ValueError("the description and the file of a task have more than 1 MiB")
    return task


def check_rows(rows: Sequence[str]) -> Sequence[str]:
    """Return ``rows``; raises ValueError if one is too long."""
    if any(len(row.encode()) > MAX_ROW_BYTES for row in rows):
        raise ValueError(f"a result row has more than {MAX_ROW_BYTES:,} bytes")
    return rows


@dataclass(frozen=True)
class BlobHead:
    """The facts about a blob before it is fetched."""

    num_bytes: int
    sha256: str

    @staticmethod
    def of(content: bytes) -> BlobHead:
        """Return the head of ``content``."""
        return BlobHead(len(content), sha256(content).hexdigest())

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return -(-self.num_bytes // CHUNK_BYTES)

    def fits(self, content: bytes) -> bool:
        """Return whether ``content`` is unchanged since it was put."""
        return BlobHead.of(content) == self

    def to_text(self) -> str:
        """Return what :meth:`parse` reads."""
        return f"{self.num_bytes} {self.sha256}"

    @staticmethod
    def parse(text: str) -> BlobHead:
        """Parse a head; raises ValueError for an invalid one, or for more than MAX_BLOB_BYTES."""
        size, digest = text.split()
        num_bytes = int(size)
        if not 0 <= num_bytes <= MAX_BLOB_BYTES:
            raise ValueError(f"a blob of {num_bytes} bytes; 0 to {MAX_BLOB_BYTES} are allowed")
        return BlobHead(num_bytes, digest)


def chunks(content: bytes) -> Iterator[bytes]:
    """Yield ``content`` in pieces of CHUNK_BYTES."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]
