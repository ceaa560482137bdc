"""What a Redis or Valkey tells of itself, and what this user may do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlexp.transport.probes.speed import Speed


@dataclass(frozen=True)
class RedisFacts:
    """What was found."""

    server: str
    """``redis`` or ``valkey``."""
    version: tuple[int, ...]
    mode: str
    """``standalone``, ``cluster`` or ``sentinel``."""
    role: str
    """``master`` or ``replica``."""
    user: str | None
    """Whose password it is; None where the server does not say."""
    missing: Mapping[str, Sequence[str]] | None
    """By role, what this user may not do of what the role does; None where the server does not say."""
    rules_server: bool
    """Whether this user may erase the server or read its configuration."""
    clock_offset_s: float
    """Seconds that the server's clock is ahead of this machine's."""
    speed: Speed
    about: Mapping[str, str] | None
    """The answers to INFO, by name; None where this user may not ask."""
