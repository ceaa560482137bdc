"""The checks of ``rlexp board check``: reachability, certificate and speed of a server, and facts about a Redis."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.redis_scripts import ACTOR, CLIENT, TRAINER

if TYPE_CHECKING:
    from rlexp.board.servers.redis_queue import RedisConnection

_CONNECT_S: Final = 5.0
NUM_ROUND_TRIPS: Final = 20
_SIZES: Final = (64 << 10, 1 << 20, 4 << 20)
_LONGEST_S: Final = 5.0
"""A size that would take longer than this, by the previous one, is not tried."""
T = TypeVar("T")
_SECTIONS: Final = ("memory", "persistence", "stats", "clients")


class ReachObstacle(StrEnum):
    """Why a server cannot be reached."""

    NAME = "name"
    """The host's name has no address."""
    PORT = "port"
    """Nothing listens there, or a firewall refuses."""
    SILENCE = "silence"
    """There is no answer."""
    PLAIN = "plain"
    """The server there does not speak TLS."""
    AUTHORITY = "authority"
    """The certificate's authority is not trusted here."""
    HOST = "host"
    """The certificate is for another host."""
    TIME = "time"
    """The certificate has expired, or is not valid yet, by the clock of this machine."""


_OBSTACLES: Final = {9: ReachObstacle.TIME, 10: ReachObstacle.TIME, 62: ReachObstacle.HOST, 64: ReachObstacle.HOST}
"""The problem of a certificate by OpenSSL's number of the error, X509_V_ERR_…; others are of its authority."""


class ReachError(Exception):
    """Raised for a server that cannot be reached."""

    def __init__(self, obstacle: ReachObstacle, reason: str) -> None:
        super().__init__(reason)
        self.obstacle, self.reason = obstacle, reason


@dataclass(frozen=True)
class Reach:
    """A server that can be reached."""

    peer: str
    """Its address as a number."""
    is_private: bool
    """Whether the address is in a private network, or this machine."""
    connect_s: float
    """Seconds until the connection was made, with TLS if it has it."""
    tls_version: str = ""
    """TLS version, such as ``TLSv1.3``; empty without TLS."""
    certificate_left_s: float | None = None
    """Seconds until its certificate expires."""

    @property
    def is_this_machine(self) -> bool:
        return ipaddress.ip_address(self.peer).is_loopback


def reach(host: str, port: int, has_tls: bool, ca_file: str = "") -> Reach:
    """Connect to a server once, and verify its certificate as clients do; raises ReachError."""
    started_s = time.perf_counter()
    with _connected(host, port) as connection:
        peer = str(connection.getpeername()[0]).partition("%")[0]
        is_private = not ipaddress.ip_address(peer).is_global
        if not has_tls:
            return Reach(peer, is_private, time.perf_counter() - started_s)
        with _encrypted(connection, host, ca_file) as encrypted:
            connect_s = time.perf_counter() - started_s
            ends = (encrypted.getpeercert() or {}).get("notAfter")
            left_s = ssl.cert_time_to_seconds(ends) - time.time() if isinstance(ends, str) else None
            return Reach(peer, is_private, connect_s, encrypted.version() or "", left_s)


def _connected(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), _CONNECT_S)
    except socket.gaierror as error:
        raise ReachError(ReachObstacle.NAME, f"{host}: {error.strerror}") from error
    except TimeoutError as error:
        raise ReachError(ReachObstacle.SILENCE, f"nothing comes back from {host}:{port}") from error
    except OSError as error:
        raise ReachError(ReachObstacle.PORT, f"{host}:{port}: {error.strerror}") from error


def _encrypted(connection: socket.socket, host: str, ca_file: str) -> ssl.SSLSocket:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ReachError(ReachObstacle.AUTHORITY, f"{ca_file} cannot be read, or has no certificate in PEM") from error
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        obstacle = _OBSTACLES.get(error.verify_code, ReachObstacle.AUTHORITY)
        raise ReachError(obstacle, f"the certificate: {error.verify_message}") from error
    except OSError as error:  # also if the server waits for a command and does not answer the start of TLS
        reason = getattr(error, "reason", "") or type(error).__name__
        raise ReachError(ReachObstacle.PLAIN, f"no TLS: {reason}") from error


@dataclass(frozen=True)
class Speed:
    """The measurements of a connection."""

    round_trip_s: float
    """Median round trip of a few small messages."""
    bytes_per_s: float | None
    """Bytes per second of the largest message that passed, counted both ways; None if none did."""
    largest_bytes: int
    """Size of the largest message that passed."""
    refused_bytes: int | None = None
    """Size of the message that did not pass; None if all did, or the connection was too slow to try."""
    refusal: str = ""


def measure(echo: Callable[[bytes], bytes]) -> Speed:
    """Return how fast ``echo`` returns messages, and up to which size; raises BoardError for small messages."""
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


@dataclass(frozen=True)
class RedisFacts:
    """The facts about a server."""

    server: str
    """``redis`` or ``valkey``."""
    version: tuple[int, ...]
    mode: str
    """``standalone``, ``cluster`` or ``sentinel``."""
    role: str
    """``master`` or ``replica``."""
    user: str | None
    """The user that the password belongs to; None if the server does not say."""
    missing: Mapping[str, Sequence[str]] | None
    """The needs of each role that this user may not do; None if the server does not say."""
    rules_server: bool
    """Whether this user may erase the server or read its configuration."""
    clock_offset_s: float
    """Seconds that the server's clock is ahead of this machine's."""
    speed: Speed
    about: Mapping[str, str] | None
    """The answers to INFO, by name; None if this user may not ask."""


_TASK: Final = "rlexp:{rlexp-board-check}:"
"""A task id that nobody announces."""
_NO_SCRIPT: Final = "0" * 40
_SEE: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "see the tasks": [
        ("SMEMBERS", "rlexp:tasks"),
        ("HMGET", f"{_TASK}task", "name"),
        ("GET", f"{_TASK}trainer"),
        ("GET", f"{_TASK}figures"),
        ("HGETALL", f"{_TASK}seats"),
        ("TIME",),
    ],
}
_NEEDS: Final[Mapping[str, Mapping[str, Sequence[Sequence[str]]]]] = {
    ACTOR.name: {
        **_SEE,
        "take a seat": [
            ("EVALSHA", _NO_SCRIPT, "1", f"{_TASK}seats"),
            ("HSET", f"{_TASK}seats", "0", ""),
            ("HGET", f"{_TASK}epochs", "0"),
            ("HGET", f"{_TASK}got", "0"),
            ("HGET", f"{_TASK}banned", "0"),
            ("LLEN", f"{_TASK}in:0"),
        ],
        "send fragments": [("RPUSH", f"{_TASK}in:0", "")],
        "read weights": [("HGET", f"{_TASK}blob:weights-1", "head")],
    },
    TRAINER.name: {
        **_SEE,
        "announce a task": [
            ("SCRIPT", "LOAD", ""),
            ("EVALSHA", _NO_SCRIPT, "2", f"{_TASK}task", f"{_TASK}epochs"),
            ("HSET", f"{_TASK}task", "name", ""),
            ("EXPIRE", f"{_TASK}task", "1"),
            ("SADD", "rlexp:tasks", ""),
            ("SREM", "rlexp:tasks", ""),
        ],
        "receive fragments": [
            ("LPOP", f"{_TASK}in:0", "1"),
            ("BLPOP", f"{_TASK}in:0", "1"),
            ("UNLINK", f"{_TASK}in:0"),
        ],
        "publish weights and results": [
            ("SET", f"{_TASK}trainer", ""),
            ("SET", f"{_TASK}figures", ""),
            ("HSET", f"{_TASK}got", "0", ""),
            ("HDEL", f"{_TASK}got", "0"),
            ("HSET", f"{_TASK}blob:weights-1", "head", ""),
            ("RENAME", f"{_TASK}blob:weights-1:1", f"{_TASK}blob:weights-1"),
            ("UNLINK", f"{_TASK}blob:weights-1"),
            ("RPUSH", f"{_TASK}rows", ""),
            ("LTRIM", f"{_TASK}rows", "0", "1"),
        ],
    },
    CLIENT.name: {
        **_SEE,
        "submit and cancel a task": [
            ("SCRIPT", "LOAD", ""),
            ("EVALSHA", _NO_SCRIPT, "1", f"{_TASK}task"),
            ("HSET", f"{_TASK}task", "name", ""),
            ("EXPIRE", f"{_TASK}task", "1"),
            ("SADD", "rlexp:tasks", ""),
        ],
        "read results": [("LRANGE", f"{_TASK}rows", "0", "1"), ("HGET", f"{_TASK}blob:result", "head")],
    },
}
"""The needs of each role, by name, each with its commands, also those in scripts."""
_RULING_COMMANDS: Final = (("FLUSHALL",), ("CONFIG", "GET", "dir"))
"""Commands that nobody needs to play, train or submit."""


def probe(address: BoardAddress) -> RedisFacts:
    """Return the facts about the server at ``address``; raises BoardLostError and BoardError."""
    from rlexp.board.servers.redis_queue import RedisConnection  # reach() needs no client library

    with closing(RedisConnection(address)) as connection:
        hello = _pairs(connection.call(b"HELLO"))
        return RedisFacts(
            server=hello.get("server", "redis"),
            version=tuple(int(part) for part in hello.get("version", "").split(".")[:3] if part.isdecimal()),
            mode=hello.get("mode", "standalone"),
            role=hello.get("role", "master"),
            user=_if_allowed(lambda: str(connection.call(b"ACL", "WHOAMI").decode())),
            missing=_if_allowed(lambda: _missing(connection)),
            rules_server=bool(_if_allowed(lambda: any(connection.may(_RULING_COMMANDS)))),
            clock_offset_s=_clock_offset_s(connection),
            speed=measure(lambda content: bytes(connection.call(b"PING", content))),
            about=_if_allowed(lambda: _about(connection)),
        )


def _if_allowed(ask: Callable[[], T]) -> T | None:
    """Return the answer to a question; None if the server refuses it; raises BoardLostError."""
    try:
        return ask()
    except BoardLostError:
        raise
    except BoardError:
        return None


def _missing(connection: RedisConnection) -> dict[str, list[str]]:
    return {
        role: [need for need, commands in needs.items() if not all(connection.may(commands))]
        for role, needs in _NEEDS.items()
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
