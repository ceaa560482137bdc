"""The settings of ``rlexp board serve``: the server's addresses, its configuration, and the folder of its passwords.

The folder keeps the passwords between starts, readable by its owner only. It has a shell file for each role: trainer,
client and actor.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil
from filelock import FileLock, Timeout

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE, BoardAddress
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE, MasterKey, parse_master
from rlexp.board.servers.access import ACTOR, CLIENT, ROLES, TRAINER
from rlexp.errors import UsageError
from rlexp.files import read_json, replace_json, replace_text

LOOPBACK: Final = "127.0.0.1"
_ALL: Final = {"0.0.0.0", "::", "*"}
_OUTSIDE: Final = "192.0.2.1"
"""An address that nobody has (RFC 5737): the system tells its own address for it, and sends nothing."""
OWNER: Final = "owner"
"""The user with all rights, for redis-cli by whoever started the server."""
USERS: Final = (OWNER, *(role.name for role in ROLES))
_PASSWORDS: Final = "passwords.json"
_MASTER: Final = "master.key"
_LOG: Final = "server.log"
_BYTES: Final = 24
"""Random bytes in a password."""


@dataclass(frozen=True)
class Binding:
    """The addresses at which a server listens."""

    addresses: tuple[str, ...]
    """Addresses as numbers."""
    host: str
    """The name or address that others type."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return all(ipaddress.ip_address(address).is_loopback for address in self.addresses)

    @property
    def public_address(self) -> str | None:
        """A listening address beyond private networks; None without one."""
        addresses = list(self.addresses)
        if any(ipaddress.ip_address(address).is_unspecified for address in addresses):
            addresses = own_addresses()
        return next((address for address in addresses if ipaddress.ip_address(address).is_global), None)


def binding(bind: str | None, host: str | None = None) -> Binding:
    """Return the addresses of a server with ``--bind``, with loopback, and the name ``host`` or a fitting address.

    Raises UsageError if ``bind`` has no address.
    """
    if bind is None:
        return Binding((LOOPBACK,), host or LOOPBACK)
    if bind in _ALL:
        everywhere = "::" if bind == "::" else "0.0.0.0"
        return Binding((everywhere,), host or _outgoing_address())
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"--bind {bind} is not an address or a known name", _own_addresses_hint()) from error
    return Binding((*sorted(found - {LOOPBACK}), LOOPBACK), host or bind)


def check_port(binding: Binding, port: int) -> None:
    """Raise UsageError if a server could not listen at ``port``."""
    for address in binding.addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen()
            except OSError as error:
                raise _refused(error, address, port) from error


def own_addresses() -> list[str]:
    """Return the addresses of this machine's network interfaces."""
    return [
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]


def _refused(error: OSError, address: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {address} is taken by another program",
            "give --port N; a Redis that the system has started can be a board itself, see docs/board.md",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{address} is not an address of this machine", _own_addresses_hint())
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is for the system's own services", "give --port 1024 or above")
    return UsageError(f"cannot listen at {address}:{port}: {os.strerror(error.errno or 0)}")


def _own_addresses_hint() -> str:
    own = [address for address in own_addresses() if not ipaddress.ip_address(address).is_link_local]
    return f"this machine has {', '.join(own)}; 0.0.0.0 means all of IPv4"


def _outgoing_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_OUTSIDE, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for a server with TLS."""

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
    """Bytes; above them the server refuses data, and both ends wait."""
    passwords: Mapping[str, str]
    """Passwords by user, for the roles and OWNER."""
    tls: TlsFiles | None = None

    def text(self) -> str:
        """Return the configuration. It has hashes of the passwords, and is not written to disk."""
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
        """Return the address for ``user``, with the password."""
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


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default folder, by the XDG rules for a program's data."""
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "rlexp" / "board"


class ServerFolder:
    """Owned by one ``board serve`` while it is entered; another one is refused meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = FileLock(self.path / "lock", timeout=0, mode=0o600)

    @property
    def log(self) -> Path:
        """The server's output since its last start."""
        return self.path / _LOG

    def __enter__(self) -> ServerFolder:
        """Make the folder if it is missing; raises UsageError if it cannot be used."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            message = f"another board serve uses {self.path}"
            raise UsageError(message, "end it, or give --dir DIR and --port N for a second one") from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be used: {error.strerror}", "give --dir DIR") from error
        try:
            self._refuse_others()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def passwords(self, users: tuple[str, ...]) -> dict[str, str]:
        """Return the password of each user: stored ones, and new ones for users without."""
        path = self.path / _PASSWORDS
        known = self._read(path) if path.exists() else {}
        passwords = {user: known.get(user) or secrets.token_urlsafe(_BYTES) for user in users}
        replace_json(path, {**known, **passwords})
        path.chmod(0o600)
        return passwords

    def master_key(self) -> MasterKey:
        """Return the key from which all actors' tokens are derived: the stored one, or a new one."""
        path = self.path / _MASTER
        if path.exists():
            try:
                return parse_master(path.read_text(encoding="ascii"))
            except (OSError, ValueError, UsageError) as error:
                message = f"{path} has no master key that can be read"
                raise UsageError(message, "delete it; the next start makes a new one, and new tokens") from error
        master = MasterKey.new()
        replace_text(path, master.to_text() + "\n")
        path.chmod(0o600)
        return master

    def write_variables(self, name: str, variables: Mapping[str, str]) -> Path:
        """Write variables for a shell into a file that it reads with ``.``; return the file."""
        path = self.path / f"{name}.env"
        lines = (f"export {variable}={shlex.quote(value)}\n" for variable, value in variables.items())
        replace_text(path, "".join(lines))
        path.chmod(0o600)
        return path

    def _read(self, path: Path) -> dict[str, str]:
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read", "delete it; the next start makes new passwords") from error
        if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
            raise UsageError(f"{path} has no passwords", "delete it; the next start makes new ones")
        return content

    def _refuse_others(self) -> None:
        if self.path.stat().st_mode & 0o077:
            raise UsageError(
                f"{self.path} would have passwords, and other users of this machine can open it",
                f"chmod 700 {self.path}, or give --dir DIR",
            )


@dataclass(frozen=True)
class RoleFiles:
    """A file for each role; whoever has the file has the role."""

    owner: Path
    trainer: Path
    client: Path
    actors: tuple[Path, ...]


def write_role_files(folder: ServerFolder, configuration: ServerConfiguration, num_actors: int) -> RoleFiles:
    """Write the files of a board with ``configuration``, and of ``num_actors`` actors with a join token each."""
    master = folder.master_key()
    actors = []
    for number in range(1, num_actors + 1):
        name = f"{ACTOR.name}-{number}"
        variables = _variables(configuration.address(ACTOR.name)) | {TOKEN_VARIABLE: master.token(name).to_text()}
        actors.append(folder.write_variables(name, variables))
    trainer = _variables(configuration.address(TRAINER.name)) | {MASTER_VARIABLE: master.to_text()}
    # A client verifies trainers' signatures with it; its user may not send fragments.
    client = _variables(configuration.address(CLIENT.name)) | {TOKEN_VARIABLE: master.token(CLIENT.name).to_text()}
    return RoleFiles(
        owner=folder.write_variables(OWNER, _variables(configuration.address(OWNER))),
        trainer=folder.write_variables(TRAINER.name, trainer),
        client=folder.write_variables(CLIENT.name, client),
        actors=tuple(actors),
    )


def _variables(address: BoardAddress) -> dict[str, str]:
    return {BOARD_VARIABLE: str(address.without_passwords()), PASSWORD_VARIABLE: address.password}
