"""``rlexp board serve``: the installed Redis or Valkey as a child process, its configuration, and its passwords.

Their folder keeps the passwords between starts, readable by its owner only. It has a shell file for each role: trainer,
client and actor.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE, BoardAddress
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE, MasterKey, parse_master
from rlexp.board.servers.redis_scripts import ACTOR, CLIENT, OLDEST, ROLES, TRAINER
from rlexp.errors import RlexpError, UsageError
from rlexp.files import read_json, replace_text, to_json
from rlexp.processes.child import Child, end_child, start_child

LOOPBACK: Final = "127.0.0.1"
_ALL: Final = {"0.0.0.0", "::", "*"}
_OUTSIDE: Final = "192.0.2.1"
"""An address that nobody has (RFC 5737): the system tells its own address for it, and sends nothing."""
OWNER: Final = "owner"
"""The user with all rights, for redis-cli by whoever started the server."""
USERS: Final = (OWNER, *(role.name for role in ROLES))
_BYTES: Final = 24
"""Random bytes in a password."""
_NAMES: Final = ("valkey-server", "redis-server")
_HOW_TO_GET: Final = (
    "apt install valkey-server (or redis-server), dnf install valkey, brew install valkey; docs/board.md has a "
    "container and free plans of clouds, which need no board serve"
)
_ANSWER_S: Final = 20.0
_READY: Final = "Ready to accept connections"
_START_S: Final = 30.0
_END_S: Final = 5.0
_POLL_S: Final = 0.02


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
            addresses = _own_addresses()
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


def _own_addresses() -> list[str]:
    return [
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]


def _refused(error: OSError, address: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        hint = "give --port N; a Redis that the system has started can be a board itself, see docs/board.md"
        return UsageError(f"port {port} of {address} is taken by another program", hint)
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{address} is not an address of this machine", _own_addresses_hint())
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is for the system's own services", "give --port 1024 or above")
    return UsageError(f"cannot listen at {address}:{port}: {os.strerror(error.errno or 0)}")


def _own_addresses_hint() -> str:
    own = [address for address in _own_addresses() if not ipaddress.ip_address(address).is_link_local]
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
        ports = [f"port {self.port}"]
        if self.tls is not None:
            ports = [
                "port 0",
                f"tls-port {self.port}",
                f"tls-cert-file {_quoted(self.tls.certificate)}",
                f"tls-key-file {_quoted(self.tls.key)}",
                "tls-auth-clients no",
                'tls-protocols "TLSv1.2 TLSv1.3"',
            ]
        lines = [
            f"bind {' '.join(self.binding.addresses)}",
            *ports,
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


def _quoted(path: Path) -> str:
    escaped = str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class ServerFolder:
    """Owned by one ``board serve`` while it is entered; another one is refused meanwhile."""

    def __init__(self, path: Path | None) -> None:
        """Use ``path``; None: the default folder, by the XDG rules for a program's data."""
        state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        self.path = (path or state / "rlexp" / "board").absolute()
        self.log = self.path / "server.log"
        """The server's output since its last start."""
        self._lock = FileLock(self.path / "lock", timeout=0, mode=0o600)

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
        if self.path.stat().st_mode & 0o077:
            self._lock.release()
            message = f"{self.path} would have passwords, and other users of this machine can open it"
            raise UsageError(message, f"chmod 700 {self.path}, or give --dir DIR")
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def passwords(self) -> dict[str, str]:
        """Return the password of each of USERS: stored ones, and new ones for users without."""
        path = self.path / "passwords.json"
        try:
            known = read_json(path) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read", "delete it; the next start makes new passwords") from error
        if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
            raise UsageError(f"{path} has no passwords", "delete it; the next start makes new ones")
        passwords = {user: known.get(user) or secrets.token_urlsafe(_BYTES) for user in USERS}
        self._keep(path, to_json({**known, **passwords}, indent=2) + "\n")
        return passwords

    def master_key(self) -> MasterKey:
        """Return the key from which all actors' tokens are derived: the stored one, or a new one."""
        path = self.path / "master.key"
        if path.exists():
            try:
                return parse_master(path.read_text(encoding="ascii"))
            except (OSError, ValueError, UsageError) as error:
                message = f"{path} has no master key that can be read"
                raise UsageError(message, "delete it; the next start makes a new one, and new tokens") from error
        master = MasterKey.new()
        self._keep(path, master.to_text() + "\n")
        return master

    def write_variables(self, name: str, variables: Mapping[str, str]) -> Path:
        """Write variables for a shell into a file that it reads with ``.``; return the file."""
        lines = (f"export {variable}={shlex.quote(value)}\n" for variable, value in variables.items())
        return self._keep(self.path / f"{name}.env", "".join(lines))

    @staticmethod
    def _keep(path: Path, text: str) -> Path:
        replace_text(path, text)
        path.chmod(0o600)
        return path


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

    def written(name: str, user: str, **secret: str) -> Path:
        address = configuration.address(user)
        board = {BOARD_VARIABLE: str(address.without_passwords()), PASSWORD_VARIABLE: address.password}
        return folder.write_variables(name, board | secret)

    def with_token(name: str, user: str) -> Path:
        return written(name, user, **{TOKEN_VARIABLE: master.token(name).to_text()})

    return RoleFiles(
        owner=written(OWNER, OWNER),
        trainer=written(TRAINER.name, TRAINER.name, **{MASTER_VARIABLE: master.to_text()}),
        # A client verifies trainers' signatures with its token; its user may not send fragments.
        client=with_token(CLIENT.name, CLIENT.name),
        actors=tuple(with_token(f"{ACTOR.name}-{number}", ACTOR.name) for number in range(1, num_actors + 1)),
    )


@dataclass(frozen=True)
class ServerProgram:
    """A server that can be started."""

    path: Path
    version: tuple[int, int, int]

    @property
    def title(self) -> str:
        return f"{self.path.name.removesuffix('-server')} {'.'.join(map(str, self.version))}"


def find_program() -> ServerProgram:
    """Return a server on PATH, preferably a Valkey; raises UsageError if none is new enough."""
    found = [ServerProgram(Path(path), _version(path)) for name in _NAMES if (path := shutil.which(name))]
    if not found:
        raise UsageError("neither valkey-server nor redis-server is on PATH", _HOW_TO_GET)
    for program in found:
        if program.version >= OLDEST:
            return program
    oldest = ".".join(map(str, OLDEST))
    raise UsageError(f"{found[0].path} is {found[0].title}; a board needs {oldest} or newer", _HOW_TO_GET)


def _version(path: str) -> tuple[int, int, int]:
    hint = "install it again, or take it off PATH"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_ANSWER_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{path} --version fails: {error}", hint) from error
    if done.returncode:
        *_, reason = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()]
        raise UsageError(f"{path} --version fails: {reason}", hint)
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise UsageError(f"{path} --version prints no version", hint)
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


class ServerProcess:
    """Owned by the code that started it, which calls :meth:`close`."""

    def __init__(self, program: ServerProgram, log: Path) -> None:
        """Initialise; ``log`` is the file with the server's output."""
        self._program, self.log = program, log
        self._process: Child | None = None

    def start(self, configuration: str) -> None:
        """Start the server and wait until it listens; raises RlexpError with its last line if it fails to start.

        The configuration goes to its standard input, as every user of a machine can read command lines.
        """
        with tempfile.TemporaryFile() as file, self.log.open("wb") as log:
            file.write(configuration.encode())
            file.seek(0)
            self._process = start_child(
                [str(self._program.path), "-"],
                folder=self.log.parent,
                stdin=file,
                stdout=log,
                stderr=subprocess.STDOUT,
                ends_with_parent=True,
            )
        ends_at = time.monotonic() + _START_S
        while _READY not in self._said():
            if self._process.poll() is not None or time.monotonic() > ends_at:
                self.close()
                raise RlexpError(f"{self._program.title} does not start: {self.last_words()}", f"see {self.log}")
            time.sleep(_POLL_S)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return lines[-1] if lines else "it says nothing"

    def close(self) -> None:
        """End it, by force if it takes too long; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            end_child(process, _END_S)

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")
