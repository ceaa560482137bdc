"""A RabbitMQ and an MQTT server (mosquitto) for tests: on loopback, at free ports, without data that stays.

They end with the process that started them, also where it is killed: RabbitMQ's epmd is started here for that reason.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.broker_packages import NoBroker, Packages, dies_with_us, installed_program, library_environment, required
from tests.brokers import free_port

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
_START_S: Final = 120.0
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
            process.wait(_START_S)
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
        ends_at = time.monotonic() + _START_S
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
