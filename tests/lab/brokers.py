"""Real servers for tests, without root: what is installed, or else Debian's packages unpacked into a cache folder.

A server listens on loopback only, at a free port, keeps nothing on the disk, and ends with the process that started it.
Where one cannot be had the test is skipped with the reason; with RLEXP_REQUIRE_BROKERS=1 it fails.

It ends with that process also where that is killed: RabbitMQ's epmd is started here for that reason.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from filelock import FileLock

_CACHE: Final = Path(os.path.expanduser(os.environ.get("RLEXP_BROKERS", "~/.cache/rlexp-test-brokers")))
_DOWNLOAD_S: Final = 45.0
_RETRY_S: Final = 600.0
"""For so long nobody tries again what has failed: other processes of the same test run would wait for it too."""


class NoBroker(Exception):  # noqa: N818
    """Why a server cannot be had."""


@contextmanager
def required(name: str) -> Iterator[None]:
    """Skip the test, or fail it with RLEXP_REQUIRE_BROKERS=1, where the body raises NoBroker."""
    try:
        yield
    except NoBroker as error:
        if os.environ.get("RLEXP_REQUIRE_BROKERS") == "1":
            pytest.fail(f"no {name}: {error}")
        pytest.skip(f"no {name}: {error}")


def installed_program(*names: str) -> Path | None:
    """Return the first program of these names that is on the path."""
    return next((Path(found) for name in names if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class Packages:
    """Debian's packages of one server, and those of the libraries that not every machine has."""

    name: str
    path: str
    """Of the program within the packages; may have wildcards."""
    packages: tuple[str, ...]

    def program(self) -> Path:
        """Return the program in the cache folder, downloaded by the first who asks; raises NoBroker."""
        folder, failure = _CACHE / self.name, _CACHE / f"{self.name}.failure"
        try:
            _CACHE.mkdir(parents=True, exist_ok=True)
            with FileLock(_CACHE / f"{self.name}.lock", timeout=3 * _DOWNLOAD_S):
                if found := next(folder.glob(self.path), None):
                    return found
                if failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_S:
                    raise NoBroker(failure.read_text(encoding="utf-8"))
                try:
                    return self._download(folder)
                except NoBroker as error:
                    failure.write_text(str(error), encoding="utf-8")
                    raise
        except (OSError, TimeoutError) as error:
            raise NoBroker(f"it is not installed, and {_CACHE} cannot be used ({error})") from error

    def _download(self, folder: Path) -> Path:
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise NoBroker("it is not installed, and its package can be had on Debian and Ubuntu only")
        with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
            _run(["apt-get", "download", "-o", "Acquire::Retries=0", *self.packages], temporary)
            unpacked = Path(temporary, "unpacked")
            for package in Path(temporary).glob("*.deb"):
                _run(["dpkg", "-x", str(package), str(unpacked)], temporary)
            if not any(unpacked.glob(self.path)):
                raise NoBroker(f"its package does not have {self.path}")
            unpacked.rename(folder)
        return next(folder.glob(self.path))


def library_environment(program: Path) -> dict[str, str]:
    """Return the environment in which ``program`` finds the libraries that were downloaded with it."""
    if _CACHE not in program.parents:
        return dict(os.environ)
    root = _CACHE / program.relative_to(_CACHE).parts[0]
    libraries = [str(path) for folder in ("usr/lib", "lib") for path in (root / folder).glob("*-linux-gnu*")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def dies_with_us() -> list[str]:
    """Return the words before a command that end it when this process ends, however that does."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _run(command: list[str], folder: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_DOWNLOAD_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBroker(f"it is not installed, and {' '.join(command[:2])} fails ({type(error).__name__})") from error


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

    def members(self, *words: str) -> list[str]:
        """Return the elements of a list, a set or a hash, which is the answer to a command."""
        return [part.decode(errors="replace") for part in self.command(*words).split(b"\r\n")[2::2]]

    def _command(self, port: int) -> list[str]:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--daemonize", "no"]
        secret = ["--requirepass", self.password] if self.password else []
        kept = ["--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always"] if self._folder else []
        return [*dies_with_us(), str(self._program), *options, *kept, *secret]

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
    """Return a port below those that connections get by themselves: a client that tries again could get a server's."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise NoBroker("no port is free")


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


_MOSQUITTO: Final = Packages(
    "mosquitto",
    "usr/sbin/mosquitto",
    ("mosquitto", "libmosquitto1", "libcjson1", "libdlt2", "libwrap0", "libcap2"),
)
_ERLANG: Final = "asn1 base crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools"
_RABBITMQ: Final = Packages(
    "rabbitmq",
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",
    ("rabbitmq-server", "erlang-xmerl", *(f"erlang-{name}" for name in _ERLANG.split())),
)
_QUEUE_START_S: Final = 120.0
LOGIN: Final = ("actor", "geheim-0815")


class QueueServer:
    """A server with a folder of its own; stopped by its owner."""

    schemes = ("", "")
    """Without TLS, and with it."""

    def __init__(self, certificate: Path | None = None) -> None:
        """With ``certificate``, a file in PEM with the key too, it speaks TLS only."""
        self.certificate = certificate
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="rlexp-queue-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        user, password = LOGIN
        return f"{self.schemes[self.certificate is not None]}://{user}:{password}@localhost:{self.port}"

    def start(self) -> None:
        """Start it, at the same port as before; raises NoBroker."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it as a crash does; its data is lost."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_QUEUE_START_S)
        self._processes = []

    def close(self) -> None:
        """End it, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, command: Sequence[str | Path], environment: dict[str, str], port: int) -> None:
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [*dies_with_us(), *map(str, command)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._processes.append(process)
        ends_at = time.monotonic() + _QUEUE_START_S
        while process.poll() is None and time.monotonic() < ends_at:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(0.02)
        text = (self.folder / "output").read_text(errors="replace")[-500:]
        self.kill()
        raise NoBroker(f"{command[0]} does not start: {text}")


class Mosquitto(QueueServer):
    schemes = ("mqtt", "mqtts")

    def start(self) -> None:
        program = installed_program("mosquitto") or _MOSQUITTO.program()
        user, password = LOGIN
        passwords, config = self.folder / "passwords", self.folder / "mosquitto.conf"
        tool = program.parents[1] / "bin/mosquitto_passwd"
        environment = library_environment(program)
        if not passwords.exists():
            passwords.write_text(f"{user}:{password}\n")
            subprocess.run([tool, "-U", passwords], env=environment, check=True, capture_output=True)
        tls = f"certfile {self.certificate}\nkeyfile {self.certificate}\n" if self.certificate else ""
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\n"
            f"user {'root' if os.getuid() == 0 else ''}\nset_tcp_nodelay true\n{tls}"
        )
        self._launch([program, "-c", config], environment, self.port)


class RabbitMQ(QueueServer):
    schemes = ("amqp", "amqps")

    def start(self) -> None:
        program = next(Path("/usr/lib/rabbitmq").glob("lib/rabbitmq_server-*/sbin/rabbitmq-server"), None)
        root = Path("/")
        if program is None:
            program = _RABBITMQ.program()
            root = program.parents[6]
        (erts,) = (root / "usr/lib/erlang").glob("erts-*/bin")
        self._write_erl(root / "usr/lib/erlang", erts)
        self._write_config()
        epmd_port = free_port()
        self._launch([erts / "epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], dict(os.environ), epmd_port)
        self._launch([program], self._environment(program, epmd_port), self.port)

    def _write_erl(self, root: Path, erts: Path) -> None:
        """Write the command ``erl``: that of the package has the folder of an installation."""
        erl = self.folder / "bin/erl"
        erl.parent.mkdir(exist_ok=True)
        variables = f"ROOTDIR={root} BINDIR={erts} EMU=beam PROGNAME=erl"
        erl.write_text(f'#!/bin/sh\nexport {variables}\nexec {erts}/erlexec "$@"\n')
        erl.chmod(0o755)

    def _write_config(self) -> None:
        user, password = LOGIN
        listeners = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        if self.certificate:
            files = "".join(f"ssl_options.{name} = {self.certificate}\n" for name in ("certfile", "keyfile"))
            listeners = f"listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:{self.port}\n{files}"
        (self.folder / "rabbitmq.conf").write_text(
            f"{listeners}default_user = {user}\ndefault_pass = {password}\n"
            "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 50MB\n"
        )
        (self.folder / "plugins").write_text("[].")

    def _environment(self, program: Path, epmd_port: int) -> dict[str, str]:
        folder = self.folder
        home = folder / "home"
        home.mkdir(exist_ok=True)
        names = {"MNESIA_BASE": "mnesia", "LOG_BASE": "log", "ENABLED_PLUGINS_FILE": "plugins", "PID_FILE": "pid"}
        names |= {"CONFIG_FILE": "rabbitmq.conf", "CONF_ENV_FILE": "none"}
        return {
            **os.environ,
            **{f"RABBITMQ_{name}": str(folder / file) for name, file in names.items()},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(home),
            "RABBITMQ_HOME": str(program.parents[1]),
            "RABBITMQ_NODENAME": f"rlexp{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Without it the script is a parent of the server, which would not end with it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
        }


@contextmanager
def running_queue(server: QueueServer) -> Iterator[QueueServer]:
    """Have ``server`` running; skips the test, or fails it, where it cannot be had."""
    try:
        with required(type(server).__name__):
            server.start()
        yield server
    finally:
        server.close()
