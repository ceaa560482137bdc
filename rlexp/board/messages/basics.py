"""What every part of a board uses: tasks, blobs, errors, and the wait before a server is tried again.

All boards check tasks and rows in the same way. A blob, such as weights or a checkpoint, is too large for one value. It
is stored in chunks whose hash is checked.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from rlexp.errors import RlexpError
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
LONGEST_S: Final = 30.0
_MOST_NAMED: Final = 100
"""Keys that are named; problems of other keys are only counted."""
_MOST_SHOWN: Final = 40
"""Most letters of a name that a stranger may have chosen."""


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
        return BlobHead(len(content), sha256(content).hexdigest())

    @property
    def num_chunks(self) -> int:
        return -(-self.num_bytes // CHUNK_BYTES)

    def fits(self, content: bytes) -> bool:
        """Return whether ``content`` is unchanged since it was put."""
        return BlobHead.of(content) == self

    def to_text(self) -> str:
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


class Backoff:
    """Seconds to wait after each failure in a row: 1, 2, 4 … 30, each up to a quarter less, so that clients differ."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next_s = 1.0

    def failed(self) -> float:
        """Return the seconds to wait after another failure."""
        wait_s = self._next_s * (1 - 0.25 * self._random.random())
        self._next_s = min(2 * self._next_s, LONGEST_S)
        return wait_s

    def succeeded(self) -> None:
        """Start anew with the next failure."""
        self._next_s = 1.0


class BoardError(RlexpError):
    """Raised if a board or its queue refuses a request: wrong password, no rights, no memory left."""


class BoardLostError(BoardError):
    """Raised if a board or its queue cannot be reached now; the same call may succeed later."""


class BannedError(BoardError):
    """Raised if the trainer of a task has banned this actor."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"the trainer of task {task_id} has banned this actor for invalid fragments, or refuses its token",
            "its newest results say why, under info/board; check that both ends have the same versions",
        )


class UnreadableError(BoardError):
    """Raised for a task whose keys hold invalid values; other tasks on the board are not affected."""

    def __init__(self, task_id: str, key: str) -> None:
        super().__init__(
            f"the board has a task {task_id} that cannot be read: its key {key} holds something else",
            "somebody else has written there, or rlexp is of another version",
        )


class UnreadableValues:
    """Counts the unreadable values of one board; used by several threads."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._named: set[tuple[str, str]] = set()
        self._events: list[str] = []

    def add(self, task_id: str, name: str, done: str = "left out") -> None:
        """Count a value and report once per key what was ``done``; ``name``: the key, a space, and the field."""
        key, _, within = name.partition(" ")
        with self._lock:
            self.count += 1
            if (task_id, key) in self._named or len(self._named) == _MOST_NAMED:
                return
            self._named.add((task_id, key))
            of_task = f" of task {_shown(task_id)}" if task_id else ""
            field = f", field {_shown(within)}" if within else ""
            self._events.append(f"key {key}{of_task}{field}: it cannot be read and is {done}; this is said once")

    def drain_events(self) -> list[str]:
        """Return the reports since the last call, a sentence each."""
        with self._lock:
            events, self._events = self._events, []
            return events


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_SHOWN])


class InvalidMessageError(Exception):
    """Raised for a refused message; its text says why in a few words, without any content of the message."""
