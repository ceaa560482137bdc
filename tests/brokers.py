"""Real servers for tests, without root: what is installed, or else Debian's packages unpacked into a cache folder.

A server listens on loopback only, at a free port, keeps nothing on the disk, and ends with the process that started it.
Where one cannot be had the test is skipped with the reason; with RLEXP_REQUIRE_BROKERS=1 it fails.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from filelock import FileLock

_PACKAGES: Final = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2", "libatomic1")
"""Debian's names; the last ones are the libraries that not every machine has."""
_CACHE: Final = Path(os.path.expanduser(os.environ.get("RLEXP_BROKERS", "~/.cache/rlexp-test-brokers")))
_OLDEST: Final = (6, 2)
_DOWNLOAD_S: Final = 45.0
_RETRY_S: Final = 600.0
"""For so long nobody tries again what has failed: other processes of the same test run would wait for it too."""
_START_S: Final = 60.0


class NoBroker(Exception):  # noqa: N818
    """Why a server cannot be had."""


class RedisServer:
    """A Redis of its own, without data; stopped by its owner."""

    def __init__(self, program: Path, password: str = "") -> None:
        self._program = program
        self.password = password
        self.port = 0
        self.version = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{':' + self.password + '@' if self.password else ''}127.0.0.1:{self.port}"

    @property
    def program(self) -> Path:
        """What runs."""
        return self._program

    @property
    def environment(self) -> dict[str, str]:
        """What the program needs to find its libraries."""
        return _environment(self._program)

    def start(self) -> None:
        """Start it, at the same port as before where it had one."""
        for _ in range(10):
            port = self.port or _free_port()
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
        """End it as a crash does; its data is lost."""
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
        return [*dies_with_us, str(self._program), *options, *secret]

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
def running_redis(password: str = "") -> Iterator[RedisServer]:
    """Have a Redis running; skips the test, or fails it, where there is none."""
    server: RedisServer | None = None
    try:
        server = RedisServer(_redis_program(), password)
        server.start()
    except NoBroker as error:
        if os.environ.get("RLEXP_REQUIRE_BROKERS") == "1":
            pytest.fail(f"no Redis: {error}")
        pytest.skip(f"no Redis: {error}")
    try:
        yield server
    finally:
        server.kill()


def _redis_program() -> Path:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    program = _CACHE / "redis" / "usr/bin/redis-server"
    failure = _CACHE / "failure"
    try:
        _CACHE.mkdir(parents=True, exist_ok=True)
        with FileLock(_CACHE / "lock", timeout=3 * _DOWNLOAD_S):
            if program.exists():
                return program
            if failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_S:
                raise NoBroker(failure.read_text(encoding="utf-8"))
            try:
                _download(_PACKAGES, _CACHE / "redis")
            except NoBroker as error:
                failure.write_text(str(error), encoding="utf-8")
                raise
    except (OSError, TimeoutError) as error:
        raise NoBroker(f"it is not installed, and {_CACHE} cannot be used ({error})") from error
    return program


def _download(packages: tuple[str, ...], folder: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoBroker("it is not installed, and its package can be had on Debian and Ubuntu only")
    with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
        _run(["apt-get", "download", "-o", "Acquire::Retries=0", *packages], temporary)
        unpacked = Path(temporary, "unpacked")
        for package in Path(temporary).glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(unpacked)], temporary)
        if not (unpacked / "usr/bin/redis-server").exists():
            raise NoBroker("its package does not have redis-server")
        unpacked.rename(folder)


def _run(command: list[str], folder: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_DOWNLOAD_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBroker(f"it is not installed, and {' '.join(command[:2])} fails ({type(error).__name__})") from error


def _environment(program: Path) -> dict[str, str]:
    libraries = [str(path) for path in (program.parents[1] / "lib").glob("*-linux-gnu*")]
    if _CACHE not in program.parents:
        return dict(os.environ)
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def _free_port() -> int:
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
