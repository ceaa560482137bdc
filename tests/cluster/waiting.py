"""Waiting for what other processes do, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.2


def wait_until(is_so: Callable[[], object], timeout_s: float, what: str) -> float:
    """Look until ``is_so`` returns something true, and return the seconds that took; AssertionError after the time."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - begun
