"""Carrier: the pipe that fragments take to the trainer of a task. It may lose, repeat and reorder messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Carrier(Protocol):
    """One end of the queue of one task; the windows at both ends make up for all of that.

    Every method raises BoardLostError where the server cannot be reached, and BoardError where it refuses.
    """

    @property
    def max_bytes(self) -> int:
        """Bytes of one message at most."""
        ...

    def send(self, messages: Sequence[bytes]) -> None:
        """Give ``messages`` to the queue, in one round trip at most; raises ValueError for one above ``max_bytes``."""
        ...

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages: those that are there, or else what comes first within ``timeout_s``."""
        ...

    def close(self) -> None:
        """Give up the connection; the second call does nothing."""
        ...
