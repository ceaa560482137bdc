"""The configuration of a server that is a board, as the text that it reads from its standard input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from rlexp.transport.address import BoardAddress
from rlexp.transport.board_server.binding import Binding
from rlexp.transport.boards.access import ROLES

OWNER: Final = "owner"
"""The user of whoever started the server, for redis-cli: it may do everything."""
USERS: Final = (OWNER, *(role.name for role in ROLES))


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM, for a server with TLS."""

    certificate: Path
    key: Path
    authority: Path | None = None
    """The certificates that clients trust instead of their system's."""


@dataclass(frozen=True)
class ServerConfiguration:
    """The settings of a server."""

    binding: Binding
    port: int
    version: tuple[int, int]
    max_memory: int
    """Bytes; beyond them it refuses what is sent to it, and both ends wait."""
    passwords: Mapping[str, str]
    """By user: those of the roles, and OWNER's."""
    tls: TlsFiles | None = None

    def text(self) -> str:
        """Return the configuration. It has hashes of the passwords, and nothing is written to the disk."""
        lines = [
            f"bind {' '.join(self.binding.addresses)}",
            *self._ports(),
            'save ""',
            "appendonly no",
            "daemonize no",
            "supervised no",
            'logfile ""',
            "tcp-keepalive 60",
            f"maxmemory {self.max_memory}",
            "maxmemory-policy noeviction",
            "user default off",
            f"user {OWNER} on #{sha256(self.passwords[OWNER].encode()).hexdigest()} ~* &* +@all",
            *(f"user {role.name} {role.rules(self.passwords[role.name], self.version)}" for role in ROLES),
        ]
        return "\n".join(lines) + "\n"

    def address(self, user: str) -> BoardAddress:
        """Return the address that ``user`` connects to, with the password."""
        return BoardAddress(
            scheme="redis" if self.tls is None else "rediss",
            host=self.binding.host,
            port=self.port,
            username=user,
            password=self.passwords[user],
            ca_file=str(self.tls.authority.absolute()) if self.tls and self.tls.authority else "",
        )

    def _ports(self) -> list[str]:
        if self.tls is None:
            return [f"port {self.port}"]
        return [
            "port 0",
            f"tls-port {self.port}",
            f"tls-cert-file {_quoted(self.tls.certificate)}",
            f"tls-key-file {_quoted(self.tls.key)}",
            "tls-auth-clients no",
            'tls-protocols "TLSv1.2 TLSv1.3"',
        ]


def _quoted(path: Path) -> str:
    escaped = str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
