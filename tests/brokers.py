"""Real servers for tests, without root: what is installed, or else Debian's packages unpacked into a cache folder.

A server listens on loopback only, at a free port, keeps nothing on the disk, and ends with the process that started it.
Where one cannot be had the test is skipped with the reason; with RLEXP_REQUIRE_BROKERS=1 it fails.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.broker_packages import NoBroker, Packages, installed_program, library_environment, required

_REDIS: Final = Packages(
    "redis", "usr/bin/redis-server", ("redis-server", "redis-tools", "liblzf1", "libjemalloc2", "libatomic1")
)
_OLDEST: Final = (6, 2)
_START_S: Final = 60.0


class RedisServer:
    """A Redis of its own, without data; stopped by its owner."""

    def __init__(self, program: Path, password: str = "", folder: Path | None = None) -> None:
        """With ``folder`` it writes every command there before it answers, and finds its data when it starts again."""
        self._program, self._folder = program, folder
        self.password = password
        self.port = 0
        self.version = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{':' + self.password + '@' if self.password else ''}127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def program(self) -> Path:
        """What runs."""
        return self._program

    @property
    def environment(self) -> dict[str, str]:
        """What the program needs to find its libraries."""
        return library_environment(self._program)

    def start(self) -> None:
        """Start it, at the same port as before where it had one."""
        for _ in range(10):
            port = self.port or free_port()
            self._process = subprocess.Popen(
                self._command(port),
                cwd=tempfile.gettempdir(),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if self._has_started(port):
                if self.version < _OLDEST:
                    self.kill()
                    raise NoBroker(f"{self._program} has version {self.version}, older than {_OLDEST}")
                self.port = port
                return
            self.kill()
            time.sleep(0.2 if self.port else 0.0)  # for a port that somebody has at this moment
        raise NoBroker(f"{self._program} does not start")

    def kill(self) -> None:
        """End it as a crash does; without a folder its data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_S)
            self._process = None

    def command(self, *words: str) -> bytes:
        """Return the answer to a command, as the server writes it."""
        with socket.create_connection(("127.0.0.1", self.port), _START_S) as connection:
            if self.password:
                _ask(connection, "AUTH", self.password)
            return _ask(connection, *words)

    def _command(self, port: int) -> list[str]:
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--daemonize", "no"]
        secret = ["--requirepass", self.password] if self.password else []
        kept = ["--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always"] if self._folder else []
        return [*dies_with_us, str(self._program), *options, *kept, *secret]

    def _has_started(self, port: int) -> bool:
        assert self._process is not None
        ends_at = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < ends_at:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                if self.password:
                    _ask(connection, "AUTH", self.password)
                # Another process may have taken the port meanwhile.
                about = _ask(connection, "INFO", "server").decode()
                if f"process_id:{self._process.pid}\r" in about:
                    major, minor = about.partition("redis_version:")[2].split(".")[:2]
                    self.version = int(major), int(minor)
                    return True
            time.sleep(0.01)
        return False


@contextmanager
def running_redis(password: str = "", folder: Path | None = None) -> Iterator[RedisServer]:
    """Have a Redis running; skips the test, or fails it, where there is none. See :class:`RedisServer`."""
    with required("Redis"):
        server = RedisServer(redis_program(), password, folder)
        server.start()
    try:
        yield server
    finally:
        server.kill()


def redis_program() -> Path:
    """Return the server that is installed, or that of Debian; raises NoBroker."""
    return installed_program("redis-server", "valkey-server") or _REDIS.program()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ask(connection: socket.socket, *words: str) -> bytes:
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    connection.sendall("".join(parts).encode())
    answer = connection.recv(1 << 16)
    if answer.startswith(b"$"):
        size, _, begun = answer.partition(b"\r\n")
        while answer and len(begun) < int(size[1:]):
            answer = connection.recv(1 << 16)
            begun += answer
        return begun
    return answer
