"""How fast a server answers, how fast large messages go, and which size is too much for it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlexp.transport.board_errors import BoardError

NUM_ROUND_TRIPS: Final = 20
_SIZES: Final = (64 << 10, 1 << 20, 4 << 20)
_LONGEST_S: Final = 5.0
"""A size that would take longer, by the one before it, is not tried."""


@dataclass(frozen=True)
class Speed:
    """What was measured."""

    round_trip_s: float
    """The median of a few small messages, there and back."""
    bytes_per_s: float | None
    """Of the largest message that went through, both ways counted; None where none did."""
    largest_bytes: int
    """Of the messages that went through."""
    refused_bytes: int | None = None
    """Of the message that did not; None where all went through, or the connection was too slow to try."""
    refusal: str = ""


def measure(echo: Callable[[bytes], bytes]) -> Speed:
    """Return how fast ``echo`` returns what it is given, and up to which size; raises BoardError for small messages."""
    times = []
    for _ in range(NUM_ROUND_TRIPS):
        started_s = time.perf_counter()
        echo(b"rlexp")
        times.append(time.perf_counter() - started_s)
    round_trip_s = statistics.median(times)
    rate: float | None = None
    largest = 0
    for size in _SIZES:
        if rate is not None and 2 * size / rate > _LONGEST_S:
            break
        content = os.urandom(size)
        started_s = time.perf_counter()
        try:
            is_whole = echo(content) == content
        except BoardError as error:
            return Speed(round_trip_s, rate, largest, size, error.message)
        if not is_whole:
            return Speed(round_trip_s, rate, largest, size, "it came back changed")
        elapsed_s = time.perf_counter() - started_s
        rate, largest = 2 * size / max(elapsed_s - round_trip_s, 1e-6), size
    return Speed(round_trip_s, rate, largest)
