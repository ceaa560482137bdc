"""A queue in this process: for tests, and for actors that are threads of the trainer's process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

MAX_BYTES: Final = 4 << 20


class MemoryQueue:
    """The messages of one task; owned by a MemoryServer."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.changed = threading.Condition()

    def add(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` and wake who waits for them."""
        with self.changed:
            self.messages.extend(messages)
            self.changed.notify_all()

    def clear(self) -> None:
        """Lose all messages."""
        with self.changed:
            self.messages.clear()


class MemoryCarrier:
    """An end of a MemoryQueue."""

    def __init__(self, queue: MemoryQueue, max_bytes: int = MAX_BYTES) -> None:
        self._queue = queue
        self._max_bytes = max_bytes

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def send(self, messages: Sequence[bytes]) -> None:
        check_sizes(messages, self._max_bytes)
        self._queue.add(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        queue = self._queue
        with queue.changed:
            queue.changed.wait_for(lambda: bool(queue.messages), timeout_s)
            return [queue.messages.popleft() for _ in range(min(limit, len(queue.messages)))]

    def close(self) -> None:
        """There is nothing to give up."""


def check_sizes(messages: Sequence[bytes], max_bytes: int) -> None:
    """Raise ValueError where a message is too large for its carrier."""
    largest = max(map(len, messages), default=0)
    if largest > max_bytes:
        raise ValueError(f"a message of {largest} bytes; the queue takes {max_bytes}")
