"""Where a board is: ``redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]``, ``rediss://`` with TLS, ``memory://NAME``."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from rlexp.errors import UsageError

BOARD_VARIABLE: Final = "RLEXP_BOARD"
"""Has the address where none is given."""
PASSWORD_VARIABLE: Final = "RLEXP_BOARD_PASSWORD"
"""Has the password, if it does not stand in the address."""
_PORTS: Final = {"redis": 6379, "rediss": 6379, "memory": 0}
_EXAMPLE: Final = "such as redis://192.168.1.7:6379"


@dataclass(frozen=True)
class BoardAddress:
    """A board's address. As text, and in its representation, the password is ``***``."""

    scheme: str
    """``redis``, ``rediss`` (with TLS) or ``memory``."""
    host: str
    """Or for ``memory`` the board's name."""
    port: int = 0
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    """The certificates that are trusted instead of the system's, a file in PEM."""

    def __str__(self) -> str:
        return self._url("***" if self.password else "")

    @property
    def secret_url(self) -> str:
        """The address with its password: for environments of processes, never for files or output."""
        return self._url(quote(self.password, safe=""))

    @property
    def has_tls(self) -> bool:
        """Whether nobody on the way can read along."""
        return self.scheme in ("rediss", "memory")

    def _url(self, password: str) -> str:
        user = quote(self.username, safe="") + (f":{password}" if password else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        database = f"/{self.database}" if self.database else ""
        query = f"?ssl_ca_certs={quote(self.ca_file)}" if self.ca_file else ""
        return f"{self.scheme}://{user + '@' if user else ''}{host}{port}{database}{query}"


def read_address(text: str | None, environment: Mapping[str, str] = os.environ) -> BoardAddress:
    """Return the board that ``text`` names: an address, or ``@FILE`` with one; without it, what $RLEXP_BOARD names.

    The password of the address counts before $RLEXP_BOARD_PASSWORD. Raises UsageError.
    """
    text = text or environment.get(BOARD_VARIABLE, "")
    if not text:
        raise UsageError("no board is given", f"give its address, {_EXAMPLE}, or set {BOARD_VARIABLE}")
    if text.startswith("@"):
        text = _first_line(Path(text[1:]))
    address = parse_address(text)
    return address if address.password else replace(address, password=environment.get(PASSWORD_VARIABLE, ""))


def parse_address(text: str) -> BoardAddress:
    """Return the address that ``text`` is; raises UsageError, whose message never has the password."""
    scheme = text.partition("://")[0]
    if scheme not in _PORTS or "://" not in text:
        raise UsageError(
            "the board's address does not begin with redis://, rediss:// or memory://", f"give it {_EXAMPLE}"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError("the board's address has a host or port that cannot be", f"give it {_EXAMPLE}") from error
    if not parts.hostname:
        raise UsageError("the board's address has no host", f"give it {_EXAMPLE}")
    return BoardAddress(
        scheme=scheme,
        host=parts.hostname,
        port=port or _PORTS[scheme],
        database=_database(parts.path),
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        ca_file=_ca_file(parts),
    )


def require_private(address: BoardAddress) -> None:
    """Raise UsageError where the board is at a public address and without TLS: its password would be read on the way.

    A name that cannot be looked up is left to the connection, whose error says so.
    """
    if address.has_tls:
        return
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:
        return
    hosts = {str(entry[4][0]).partition("%")[0] for entry in found}
    if any(ipaddress.ip_address(host).is_global for host in hosts):
        raise UsageError(
            f"{address} is a public address, and the connection would not be encrypted",
            "use rediss://, a tunnel (ssh -L, WireGuard), or --insecure if nobody can read along",
        )


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} with the board's address cannot be read: {type(error).__name__}") from error
    if not lines:
        raise UsageError(f"{path} is empty; it should have the board's address", f"write it there, {_EXAMPLE}")
    return lines[0]


def _database(path: str) -> int:
    number = path.strip("/")
    if number and not re.fullmatch(r"\d{1,4}", number):
        raise UsageError("the board's address has a database that is no number", f"give it {_EXAMPLE}/0")
    return int(number or 0)


def _ca_file(parts: SplitResult) -> str:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    ca_file = options.pop("ssl_ca_certs", "")
    if options:
        raise UsageError(
            f"the board's address has the option {next(iter(options))!r}, which is not supported",
            "only ssl_ca_certs=FILE is; a server's certificate is always verified",
        )
    return ca_file
