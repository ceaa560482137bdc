"""``rlexp board serve``, ``check`` and ``acl``, with the server that the tests have."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlexp.board.messages.address import read_address
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import read_master, read_token
from rlexp.board.servers import open_board
from rlexp.board.servers.redis_scripts import ROLES
from rlexp.cli import app
from rlexp.errors import UsageError
from tests.lab.brokers import RedisServer, free_port, running_redis

TIMEOUT_S = 60
ACL = [f"ACL SETUSER {role.name} {role.rules(None)}" for role in ROLES]


def environment_with(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLEXP_BOARD")}
    return {**kept, **variables}


@pytest.fixture(autouse=True)
def no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin, and end, without a board in the environment; commands put the password there."""
    for name in ("RLEXP_BOARD", "RLEXP_BOARD_PASSWORD"):
        monkeypatch.setenv(name, "")


def rlexp(*words: str, path: str | None = None) -> Result:
    return CliRunner().invoke(app, ["board", *words], env={"PATH": path or os.environ["PATH"]})


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with running_redis("geheim") as server:
        yield server


@pytest.fixture
def serving_path(server: RedisServer, tmp_path: Path) -> str:
    """A PATH on which the server's program is, also where it needs libraries of its own."""
    if shutil.which("redis-server") or shutil.which("valkey-server"):
        return os.environ["PATH"]
    program = tmp_path / "bin" / "redis-server"
    program.parent.mkdir()
    libraries = shlex.quote(server.environment.get("LD_LIBRARY_PATH", ""))
    program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {shlex.quote(str(server.program))} "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def started(folder: Path, port: int, path: str, *words: str) -> tuple[subprocess.Popen[str], Mapping[str, object]]:
    options = ["--dir", str(folder), "--port", str(port), "--json", *words]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlexp", "board", "serve", *options],
        env=environment_with(PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=TIMEOUT_S)[1]
    return process, json.loads(line)


def variables_of(file: object) -> dict[str, str]:
    words = shlex.split(Path(str(file)).read_text(), comments=True)
    return dict(word.split("=", 1) for word in words if "=" in word)


def is_listening(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def ends_listening(port: int) -> bool:
    ends_at = time.monotonic() + TIMEOUT_S
    while is_listening(port) and time.monotonic() < ends_at:
        time.sleep(0.02)
    return not is_listening(port)


def test_served_board_is_used_by_each_role_and_ends_with_its_command(serving_path: str, tmp_path: Path) -> None:
    folder, port = tmp_path / "board", free_port()
    process, served = started(folder, port, serving_path, "--actors", "2")
    try:
        files = served["files"]
        assert isinstance(files, dict)
        assert served["problem"] == ""
        trainer, actor = variables_of(files["trainer"]), variables_of(files["actors"][1])
        with_trainer = open_board(read_address(None, trainer))
        with_trainer.announce(Task("t1", "cartpole", 1))
        with_actor = open_board(read_address(None, actor))
        assert with_actor.claim("t1", "actor-2/1", 60.0) is not None
        token, master = read_token(actor), read_master(trainer)
        assert token is not None
        assert master is not None
        assert token == master.token("actor-2")
        with_actor.close()
        with_trainer.close()
        process.send_signal(signal.SIGINT)
        said = "".join(process.communicate(timeout=TIMEOUT_S))
        assert process.returncode == 130
        assert ends_listening(port)
        assert all(value not in said for name, value in trainer.items() if name != "RLEXP_BOARD")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert trainer["RLEXP_BOARD_PASSWORD"] not in (folder / "server.log").read_text()
    finally:
        process.kill()
        process.wait()
    process, again = started(folder, port, serving_path)
    try:
        assert variables_of(again["files"]["trainer"]) == trainer  # type: ignore[index]
        if sys.platform == "linux":
            process.kill()
            process.wait()
            assert ends_listening(port)
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def refused(words: Sequence[str], path: str) -> str:
    error = rlexp("serve", *words, path=path).exception
    assert isinstance(error, UsageError)
    return f"{error.message}; {error.hint}"


def test_serve_refuses_what_cannot_be_with_a_remedy(server: RedisServer, serving_path: str, tmp_path: Path) -> None:
    folder = ["--dir", str(tmp_path / "board")]
    assert "give --port" in refused([*folder, "--port", str(server.port)], serving_path)
    assert "apt install" in refused(folder, str(tmp_path))
    assert "8.8.8.8 is a public address" in refused([*folder, "--bind", "8.8.8.8"], serving_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    assert "chmod 700" in refused(["--dir", str(shared), "--port", str(free_port())], serving_path)
    assert "both --tls-cert" in refused([*folder, "--tls-cert", str(tmp_path / "a.pem")], serving_path)
    assert not (tmp_path / "board").exists()


def test_serve_refuses_an_old_server(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64'\n")
    program.chmod(0o755)
    assert "is redis 6.0.16; a board needs 6.2 or newer" in refused([], str(tmp_path))


def test_check_tells_what_it_finds_and_leaves_nothing(server: RedisServer) -> None:
    done = rlexp("check", server.url, "--json")
    report = json.loads(done.stdout)
    levels = {finding["check"]: finding["level"] for finding in report["checks"]}
    assert (done.exit_code, report["ok"]) == (0, True)
    assert levels["rights"] == "warning"
    assert levels["largest message"] == levels["round trip"] == levels["memory"] == "ok"
    assert "geheim" not in done.output
    assert server.command("DBSIZE") == b":0\r\n"


def test_check_of_a_role_says_which_it_is(server: RedisServer) -> None:
    if server.version < (7, 0):
        pytest.skip("Redis before 7.0 knows no keys that may only be read")
    for line in ACL:
        server.command(*line.split())
    done = rlexp("check", f"redis://actor:PASSWORD_OF_ACTOR@127.0.0.1:{server.port}")
    assert "user actor can be actor\n" in done.stdout
    assert done.exit_code == 0
    server.command("ACL", "SETUSER", "actor", "-evalsha")
    done = rlexp("check", f"redis://actor:PASSWORD_OF_ACTOR@127.0.0.1:{server.port}")
    assert "as actor it may not take a seat" in done.stdout
    assert done.exit_code == 1
    assert server.command("DBSIZE") == b":0\r\n"


def test_check_names_what_keeps_it_from_a_server(server: RedisServer) -> None:
    for url, words in (
        ("redis://127.0.0.1:9", "Connection refused"),
        (f"redis://:wrong@127.0.0.1:{server.port}", "refuses the password"),
    ):
        done = rlexp("check", url)
        assert done.exit_code == 1
        assert words in done.stdout
        assert "wrong" not in done.output


def test_acl_prints_what_a_server_takes() -> None:
    done = rlexp("acl", "--commands")
    assert done.stdout.splitlines() == ACL
    assert rlexp("acl", "--role", "actor").stdout.startswith("user actor reset on >PASSWORD_OF_ACTOR ")
    assert isinstance(rlexp("acl", "--role", "nobody").exception, UsageError)
