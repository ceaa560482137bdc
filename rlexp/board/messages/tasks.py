"""A task as it lies on a board: what it, its name and its rows may be like; every board checks them alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlexp.files import to_json

MAX_DESCRIPTION_BYTES: Final = 1 << 20
"""Of a description and a file together."""

MAX_ROW_BYTES: Final = 1 << 16

KEPT_ROWS: Final = 1000

KEPT_S: Final = 7 * 24 * 3600
"""For how long a board knows of a task that is over, or that nobody has trained: a week."""

MOST_SEATS: Final = 10_000

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Task:
    """What a trainer announces, or somebody submits."""

    id: str
    """Letters, digits, ``-`` and ``_``, at most 64 of them; unlike any other task's."""
    name: str
    """What people call it: the experiment's name."""
    num_seats: int
    """Actors at most, from 1 on."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """What an actor needs to know, of JSON's own types; empty where no trainer has begun yet."""
    file: str = ""
    """The experiment of a submitted task, as YAML, 1 MiB with the description; empty where its trainer has the file."""


def is_name(name: str) -> bool:
    """Return whether ``name`` can be the id of a task or the name of a blob."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return ``name``; raises ValueError where it has other characters than ids of tasks and names of blobs have."""
    if not is_name(name):
        raise ValueError(f"{name[:80]!r} has other characters than letters, digits, - and _, or more than 64")
    return name


def check_task(task: Task) -> Task:
    """Return ``task``; raises ValueError where something about it is not allowed."""
    check_name(task.id)
    if not 1 <= task.num_seats <= MOST_SEATS:
        raise ValueError(f"a task of {task.num_seats} seats; 1 to {MOST_SEATS} are allowed")
    if not isinstance(task.description, Mapping):
        raise ValueError("the description of a task is no object")
    if len(to_json(task.description)) + len(task.file.encode()) > MAX_DESCRIPTION_BYTES:
        raise ValueError("the description and the file of a task have more than 1 MiB")
    return task


def check_rows(rows: Sequence[str]) -> Sequence[str]:
    """Return ``rows``; raises ValueError where one is too long."""
    if any(len(row.encode()) > MAX_ROW_BYTES for row in rows):
        raise ValueError(f"a result row has more than {MAX_ROW_BYTES:,} bytes")
    return rows
