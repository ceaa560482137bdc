"""The errors of boards and queues, unreadable values there, and the wait before a server is tried again."""

from __future__ import annotations

import random
import threading
from typing import Final

from rlexp.errors import RlexpError

LONGEST_S: Final = 30.0


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


_MOST_NAMED: Final = 100
"""Keys that are named; problems of other keys are only counted."""
_MOST_SHOWN: Final = 40
"""Most letters of a name that a stranger may have chosen."""


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
