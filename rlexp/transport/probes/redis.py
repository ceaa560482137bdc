"""Asks a Redis or Valkey what it is, and what this user may do there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

from rlexp.transport.address import BoardAddress
from rlexp.transport.board_errors import BoardError, BoardLostError
from rlexp.transport.boards.role_needs import NEEDS, RULING_COMMANDS, needed_commands
from rlexp.transport.carriers.redis import RedisConnection
from rlexp.transport.probes.redis_facts import RedisFacts
from rlexp.transport.probes.speed import measure

T = TypeVar("T")
_SECTIONS: Final = ("memory", "persistence", "stats", "clients")


def probe(address: BoardAddress) -> RedisFacts:
    """Return what the server at ``address`` tells; raises BoardLostError and BoardError."""
    with closing(RedisConnection(address)) as connection:
        hello = _pairs(connection.call(b"HELLO"))
        return RedisFacts(
            server=hello.get("server", "redis"),
            version=_version(hello.get("version", "")),
            mode=hello.get("mode", "standalone"),
            role=hello.get("role", "master"),
            user=_if_allowed(lambda: str(connection.call(b"ACL", "WHOAMI").decode())),
            missing=_if_allowed(lambda: _missing(connection)),
            rules_server=bool(_if_allowed(lambda: any(connection.may(RULING_COMMANDS)))),
            clock_offset_s=_clock_offset_s(connection),
            speed=measure(lambda content: bytes(connection.call(b"PING", content))),
            about=_if_allowed(lambda: _about(connection)),
        )


def _if_allowed(ask: Callable[[], T]) -> T | None:
    """Return the answer to a question, None where the server refuses it; raises BoardLostError."""
    try:
        return ask()
    except BoardLostError:
        raise
    except BoardError:
        return None


def _missing(connection: RedisConnection) -> dict[str, list[str]]:
    return {
        role: [need for need in needs if not all(connection.may(needed_commands(need)))]
        for role, needs in NEEDS.items()
    }


def _clock_offset_s(connection: RedisConnection) -> float:
    before_s = time.time()
    seconds, micros = connection.call(b"TIME")
    return int(seconds) + int(micros) / 1e6 - (before_s + time.time()) / 2


def _about(connection: RedisConnection) -> dict[str, str]:
    about: dict[str, str] = {}
    for section in _SECTIONS:
        text = connection.call(b"INFO", section).decode("utf-8", "replace")
        about |= dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return about


def _pairs(answer: Sequence[Any]) -> dict[str, str]:
    """Return the names and texts of an answer that is a list of pairs."""
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in answer]
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
