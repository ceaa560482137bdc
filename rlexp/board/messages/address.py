"""Addresses of boards and of their queues: ``redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]``, ``amqps://…``.

With TLS, certificates are always verified; an error says what is wrong with one, and the remedy.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from rlexp.board.messages.basics import BoardError, is_name
from rlexp.errors import UsageError

BOARD_VARIABLE: Final = "RLEXP_BOARD"
"""Environment variable with the board's address, if none is given."""
PASSWORD_VARIABLE: Final = "RLEXP_BOARD_PASSWORD"
"""Environment variable with the board's password, if it is not in the address."""
QUEUE_VARIABLE: Final = "RLEXP_QUEUE"
QUEUE_PASSWORD_VARIABLE: Final = "RLEXP_QUEUE_PASSWORD"
QUEUE_OF_BOARD: Final = "board"
"""The kind of queue that every board has itself."""
QUEUE_NAMES: Final = {
    QUEUE_OF_BOARD: "the board itself",
    "rabbitmq": "RabbitMQ",
    "mqtt": "MQTT",
    "pubsub": "Google Cloud Pub/Sub",
}
_ENCRYPTED: Final = {"redis": "rediss", "amqp": "amqps", "mqtt": "mqtts"}
"""Each scheme, and its variant with TLS."""
NONE: Final = "none"
"""The word for no board, or for no queue beside it."""
_QUEUE_KINDS: Final = {"amqp": "rabbitmq", "amqps": "rabbitmq", "mqtt": "mqtt", "mqtts": "mqtt", "pubsub": "pubsub"}
_PUBSUB_HINT: Final = "give it as pubsub://PROJECT/TOPIC"
_ALWAYS_ENCRYPTED: Final = {*_ENCRYPTED.values(), "pubsub"}
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED; the other codes are for a wrong host name or address."""
_WRONG_HOST: Final = (62, 64)
TASK_VARIABLE: Final = "RLEXP_TASK"
"""Environment variable ``ID EPOCH PARENT MEMBER``; set by ``join`` only."""


@dataclass(frozen=True)
class _Kind:
    """What addresses of one kind of server have in common."""

    name: str
    variable: str
    ports: Mapping[str, int]
    example: str

    @property
    def hint(self) -> str:
        return f"give it such as {self.example}"


_BOARD: Final = _Kind("board", BOARD_VARIABLE, {"redis": 6379, "rediss": 6379}, "redis://192.168.1.7:6379")
_QUEUE: Final = _Kind(
    "queue",
    QUEUE_VARIABLE,
    {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883, "pubsub": 0},
    "amqps://USER@HOST or mqtts://USER@HOST",
)


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server. As text, and in its repr, the password is ``***``."""

    scheme: str
    host: str
    port: int = 0
    path: str = ""
    """The part after the port, without the slash."""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    """A PEM file of certificates that are trusted instead of the system's."""

    def __str__(self) -> str:
        user = quote(self.username, safe="") + (":***" if self.password else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        path = f"/{quote(self.path, safe='/')}" if self.path else ""
        query = f"?ssl_ca_certs={quote(self.ca_file)}" if self.ca_file else ""
        return f"{self.scheme}://{user + '@' if user else ''}{host}{port}{path}{query}"

    @property
    def has_tls(self) -> bool:
        return self.scheme in _ALWAYS_ENCRYPTED

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine itself, for every machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class QueueAddress(ServerAddress):
    """The address of a server beside the board for fragments; the path is RabbitMQ's virtual host, or MQTT's prefix.

    The scheme is ``amqp``, ``amqps``, ``mqtt`` or ``mqtts``; or ``pubsub``, with a Google project as host and a topic
    of it as path.
    """

    @property
    def kind(self) -> str:
        """``rabbitmq``, ``mqtt`` or ``pubsub``; both ends must have the same kind."""
        return _QUEUE_KINDS[self.scheme]


@dataclass(frozen=True)
class BoardAddress(ServerAddress):
    """A board's address, and the queue for the fragments of its tasks."""

    queue: QueueAddress | None = None
    """The queue; None: fragments go over the board itself."""

    @property
    def server(self) -> str:
        """The board as runs record it: without user, password, certificates and queue."""
        return str(BoardAddress(self.scheme, self.host, self.port, str(self.database) if self.database else ""))

    @property
    def database(self) -> int:
        return int(self.path or 0)

    @property
    def queue_kind(self) -> str:
        """QUEUE_OF_BOARD, or the kind of ``queue``."""
        return QUEUE_OF_BOARD if self.queue is None else self.queue.kind

    def without_passwords(self) -> BoardAddress:
        """Return the address without passwords, which may be shown and stored."""
        return replace(self, password="", queue=self.queue and replace(self.queue, password=""))

    def with_passwords(self, environment: Mapping[str, str]) -> BoardAddress:
        """Return the address with the passwords in an environment."""
        queue = self.queue and replace(self.queue, password=environment.get(QUEUE_PASSWORD_VARIABLE, ""))
        return replace(self, password=environment.get(PASSWORD_VARIABLE, ""), queue=queue)


def read_address(text: str | None, environment: Mapping[str, str] = os.environ) -> BoardAddress:
    """Return the board that ``text`` names: an address, or ``@FILE`` with one; by default, $RLEXP_BOARD names it.

    A password in the address has priority over $RLEXP_BOARD_PASSWORD. Raises UsageError.
    """
    address = parse_address(_given(text, _BOARD, environment))
    return address if address.password else replace(address, password=environment.get(PASSWORD_VARIABLE, ""))


def read_queue_address(text: str | None, environment: Mapping[str, str] = os.environ) -> QueueAddress:
    """Return the queue that ``text`` or $RLEXP_QUEUE names, as :func:`read_address` does for boards."""
    address = parse_queue_address(_given(text, _QUEUE, environment))
    return address if address.password else replace(address, password=environment.get(QUEUE_PASSWORD_VARIABLE, ""))


def parse_address(text: str) -> BoardAddress:
    """Parse a board's address; raises UsageError, whose message never has the password."""
    address = BoardAddress(**_fields(text, _BOARD))
    if address.path and not re.fullmatch(r"\d{1,4}", address.path):
        raise UsageError("the board's address has a database that is not a number", f"{_BOARD.hint}/0")
    return address


def parse_queue_address(text: str) -> QueueAddress:
    """Parse a queue's address; raises UsageError, whose message never has the password."""
    address = QueueAddress(**_fields(text, _QUEUE))
    if address.scheme == "pubsub":
        project, topic = address.host, address.path
        if not topic or "/" in topic or address != QueueAddress("pubsub", project, path=topic):
            raise UsageError("the address of a Pub/Sub topic is a project and a topic, and no more", _PUBSUB_HINT)
    return address


def require_private(address: ServerAddress) -> None:
    """Raise UsageError if a server has a public address and no TLS, as its password could be read on the way.

    A name that cannot be looked up passes; the connection's error reports it.
    """
    if address.has_tls:
        return
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:
        return
    hosts = {str(entry[4][0]).partition("%")[0] for entry in found}
    if any(ipaddress.ip_address(host).is_global for host in hosts):
        encrypted = _ENCRYPTED[address.scheme]
        raise UsageError(
            f"{address} is a public address, and the connection would not be encrypted",
            f"use {encrypted}://, a tunnel (ssh -L, WireGuard), or --insecure if nobody can read along",
        )


def _given(text: str | None, kind: _Kind, environment: Mapping[str, str]) -> str:
    text = text or environment.get(kind.variable, "")
    if not text:
        hint = f"give its address, such as {kind.example}, or set {kind.variable}"
        raise UsageError(f"no {kind.name} is given", hint)
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} with the {kind.name}'s address cannot be read: {type(error).__name__}") from error
    if not lines:
        message = f"{path} is empty; it should have the {kind.name}'s address"
        raise UsageError(message, f"write it there: {kind.example}")
    return lines[0]


def _fields(text: str, kind: _Kind) -> dict[str, Any]:
    scheme = text.partition("://")[0]
    if scheme not in kind.ports or "://" not in text:
        *others, last = (f"{each}://" for each in kind.ports)
        raise UsageError(f"the {kind.name}'s address does not begin with {', '.join(others)} or {last}", kind.hint)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the {kind.name}'s address has a host or port that cannot be", kind.hint) from error
    if not parts.hostname:
        raise UsageError(f"the {kind.name}'s address has no host", kind.hint)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    ca_file = options.pop("ssl_ca_certs", "")
    if options:
        raise UsageError(
            f"the {kind.name}'s address has the option {next(iter(options))!r}, which is not supported",
            "only ssl_ca_certs=FILE is; a server's certificate is always verified",
        )
    return {
        "scheme": scheme,
        "host": parts.hostname,
        "port": port or kind.ports[scheme],
        "path": unquote(parts.path).strip("/"),
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "ca_file": ca_file,
    }


def tls_context(address: ServerAddress) -> ssl.SSLContext:
    """Return a context that verifies the server at ``address``; raises BoardError if its CA file cannot be used."""
    try:
        return ssl.create_default_context(cafile=address.ca_file or None)
    except (OSError, ValueError) as error:
        raise BoardError(
            f"the certificates in {address.ca_file} cannot be used: {type(error).__name__}",
            "?ssl_ca_certs= names a file in PEM with the certificate of the CA",
        ) from error


def tls_problem(address: ServerAddress, error: BaseException) -> BoardError | None:
    """Return the problem of the server's certificate; None if ``error`` is about something else."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_problem(address, cause)
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return BoardError(f"{address} does not speak TLS at this port", "give the port that its TLS listens at")
    return None


def _certificate_problem(address: ServerAddress, error: ssl.SSLCertVerificationError) -> BoardError:
    what = f"is from a CA that is not trusted here: {error.verify_message}"
    hint = f"if it is your own, give its file: {address.scheme}://HOST?ssl_ca_certs=FILE"
    if error.verify_code == _EXPIRED:
        what, hint = "has expired", "renew it at the server; is the clock of this machine right?"
    elif error.verify_code == _NOT_YET_VALID:
        what, hint = "is not valid yet", "wait, or set the clock of this machine or of its issuer"
    elif error.verify_code in _WRONG_HOST:
        what, hint = "is for another host name", "give the name that the certificate has, or issue one for this name"
    return BoardError(f"the certificate of {address} {what}", hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and the errors that it wraps or carries, as client libraries wrap theirs."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        carried = (getattr(found, "exceptions", ()), getattr(found, "exception", None), found.args)
        flat = [*(carried[0] if isinstance(carried[0], list | tuple) else ()), carried[1], *carried[2]]
        waiting += [each for each in (found.__cause__, found.__context__, *flat) if isinstance(each, BaseException)]


@dataclass(frozen=True)
class HandedTask:
    """A submitted task, and the right to train it."""

    id: str
    epoch: int
    parent: int
    """The process that waits for the end of the training."""
    member: str

    def to_text(self) -> str:
        """Return the value of TASK_VARIABLE."""
        return f"{self.id} {self.epoch} {self.parent} {self.member}"


def handed_task(environment: Mapping[str, str] = os.environ) -> HandedTask | None:
    """Return the task that this process is to train; None without one. Raises UsageError for any other text."""
    text = environment.get(TASK_VARIABLE)
    if text is None:
        return None
    try:
        task_id, epoch, parent, member = text.split(" ", 3)
        if not is_name(task_id) or not member:
            raise ValueError
        return HandedTask(task_id, int(epoch), int(parent), member)
    except ValueError:
        raise UsageError(f"{TASK_VARIABLE} is set by rlexp join, and holds something else", "unset it") from None
