"""Derived seeds: one seed in a file gives every env, worker, shard, sample and learner a stream of its own."""

from __future__ import annotations

import hashlib
from typing import Final

LARGEST_SEED: Final = 2**32 - 1
"""What NumPy, Gymnasium and torch all accept."""


def derive_seed(seed: int, *stream: str | int) -> int:
    """Return a 31-bit seed for the stream named ``stream`` (such as ``("worker", 3)``).

    The same arguments give the same seed on every machine and Python; different streams are
    independent for all practical purposes (SHA-256). 31 bits fit what Gymnasium, NumPy and torch accept.
    """
    text = "/".join(str(part) for part in (seed, *stream))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
