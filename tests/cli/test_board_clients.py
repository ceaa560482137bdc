"""``rlexp join``, ``submit``, ``tasks``, ``cancel``, ``board keys``: what they load, refuse and print, how they end.

Commands look at the cluster that the environment or an option names before they create anything.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rlexp
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import MasterKey, parse_master, parse_token, signed_task
from rlexp.board.servers import open_board
from rlexp.cli import app
from rlexp.commands import submit
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.family import SESSION
from tests.cli import forked_commands
from tests.lab.board import EXPERIMENT
from tests.lab.brokers import RedisServer, running_redis


def made(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["board", "keys", "--out", str(folder), *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_files_are_for_their_owner_alone_and_no_secret_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    printed = made(folder, "redis://:geheim@host", "--actor", "alice", "--actors", "2")
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["actor-1.token", "actor-2.token", "alice.token", "master.key"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "geheim" not in printed
    assert not any(file.read_text().strip() in printed for file in files)
    master = parse_master((folder / "master.key").read_text())
    assert parse_token((folder / "alice.token").read_text()) == master.token("alice")


def test_master_key_is_kept_and_tokens_are_made_again(tmp_path: Path) -> None:
    made(tmp_path, "--actor", "alice")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    (tmp_path / "alice.token").unlink()
    answer = json.loads(made(tmp_path, "--actor", "alice", "--actor", "bob", "--json"))
    assert answer["tokens"] == {name: str(tmp_path / f"{name}.token") for name in ("alice", "bob")}
    assert {name: (tmp_path / name).read_text() for name in before} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no actor is given"),
        (["--actor", "a/b"], "cannot be the id"),
        (["ftp://x", "--actors", "1"], "does not begin with"),
    ],
)
def test_wrong_options_leave_no_file(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        made(tmp_path / "keys", *words)
    assert not (tmp_path / "keys").exists()


TIMEOUT_S = 150
DEAD = "redis://127.0.0.1:9"  # nothing listens at the discard port
PASSWORD = "geheim-4711"
SUBMITS = """
import json, sys, rlexp
first = sorted({"numpy", "pydantic", "ray", "torch", "typer"} & sys.modules.keys())
done = rlexp.submit("a.yaml", board=sys.argv[1], wait=False, quiet=True)
print(json.dumps([first, sorted({"ray", "torch"} & sys.modules.keys()), done.task_id]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with running_redis(PASSWORD) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    return tmp_path


@pytest.fixture
def url(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The board's address; the password is in the environment."""
    monkeypatch.setenv("RLEXP_BOARD_PASSWORD", PASSWORD)
    return f"redis://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"file": "a.yaml"}, "no board is given"),
        ({"board": DEAD}, "submit needs an experiment file"),
        ({"file": "a.yaml", "attach": "t", "board": DEAD}, "--attach cannot be combined with a file"),
        ({"file": "a.yaml", "wait": False, "evaluate": 1, "board": DEAD}, "--no-wait cannot be combined"),
        ({"file": "a.yaml", "overrides": ["config.lr=fast"], "board": DEAD}, "config.lr"),
        ({"file": "a.yaml", "board": DEAD}, "cannot be reached"),
        ({"file": "a.yaml", "board": DEAD, "token": "abc"}, "--token takes @FILE"),
    ],
)
def test_what_is_wrong_is_an_error_and_nothing_is_created(
    options: dict[str, Any], error: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RLEXP_BOARD", "")
    with pytest.raises(RlexpError, match=error):
        rlexp.submit(**options)
    assert [path.name for path in folder.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("task_id", ["unknown-1", "a:b", "", "../x", "é", "x" * 100])
def test_task_that_is_not_there_is_an_error_and_nothing_is_created(
    task_id: str, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="is not on the board"):
        rlexp.submit(attach=task_id, board=url)
    assert [path.name for path in folder.iterdir()] == ["a.yaml"]


def test_task_is_submitted_listed_and_cancelled_with_its_password_nowhere(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", SUBMITS, url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    first, loaded, task_id = json.loads(done.stdout)
    assert (first, loaded) == ([], [])
    submit.tasks(url, as_json=True)
    (task,) = (task for task in json.loads(capsys.readouterr().out)["tasks"] if task["id"] == task_id)
    assert (task["name"], task["status"], task["seats"]) == ("cartpole", "QUEUED", 3)
    submit.cancel([url, task_id])
    assert capsys.readouterr().out == f"cancelled {task_id}; nobody trained it\n"
    with pytest.raises(UsageError, match=f"task {task_id} is over already: CANCELLED"):
        submit.cancel([url, task_id])
    with pytest.raises(UsageError, match="task t-1 is not on the board"):
        submit.cancel([url, "t-1"])
    command = [sys.executable, "-m", "rlexp", "submit", "--attach", task_id, "--board", url]
    attached = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert attached.returncode == 1, attached.stderr
    assert "the task was cancelled: cancelled with rlexp cancel" in attached.stderr
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 1
    assert not any(PASSWORD.encode() in content for content in written)


def test_interrupt_ends_the_waiting_with_130_and_the_task_goes_on(folder: Path, server: RedisServer) -> None:
    address = f"redis://:{PASSWORD}@127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "rlexp", "submit", "a.yaml", "--board", address]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        while not said or "submitted as" not in said[-1]:  # notices about the file come first
            said.append(process.stderr.readline())
            assert said[-1], "it ended"
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 130
    task_id = said[-1].split()[-1]
    assert said[-1].endswith(f"submitted as {task_id}\n")
    assert f"rlexp submit --attach {task_id} --board redis://127.0.0.1:{server.port}" in rest
    assert PASSWORD not in "".join(said) + rest
    assert list((folder / "results").iterdir()) == []
    board = open_board(parse_address(address))
    assert board.cancel(task_id, "the test is over")
    board.close()


def test_garbage_of_others_hides_no_task_and_is_named(
    server: RedisServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.command("FLUSHALL")
    board = open_board(parse_address(url.replace("redis://", f"redis://:{PASSWORD}@")))
    for task_id in ("good", "spoiled", "typed"):
        board.submit(Task(task_id, "n", 1))
    board.close()
    server.command("HSET", "rlexp:{good}:task", "announced", f"-{'9' * 400}", "reason", "\x1b[31mred")
    server.command("RPUSH", "rlexp:{good}:seats", "x")
    server.command("HSET", "rlexp:{spoiled}:task", "status", "DANC\x1bING")
    server.command("DEL", "rlexp:{typed}:task")
    server.command("RPUSH", "rlexp:{typed}:task", "x")
    submit.tasks(url)
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["id", "good", "good:"]
    assert "\x1b" not in shown.out + shown.err
    for key in ("key task of task good, field announced", "key seats of task good", "key task of task typed"):
        assert key in shown.err
    assert "key task of task spoiled, field status" in shown.err
    with pytest.raises(UsageError, match="not on the board"):
        submit.cancel([url, "spoiled"])
    submit.cancel([url, "good"])


ADDRESS = "127.0.0.1:9"  # nothing listens at the discard port
DQN_FILE = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"


def in_folder(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.yaml").write_text(DQN_FILE)
    return forked_commands.rlexp(*words, cwd=folder, **{SESSION: None, **variables})


@pytest.mark.parametrize(
    "words",
    [["run", "a.yaml"], ["sweep", "a.yaml", "--sweep", "lr=1,2"], ["train", "-f", "a.yaml"], ["check", "a.yaml"]],
    ids=lambda words: words[0],
)
def test_command_looks_for_the_cluster_of_the_environment(words: list[str], tmp_path: Path) -> None:
    done = in_folder(tmp_path, *words, RAY_ADDRESS=ADDRESS)
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()[-2:]
    assert error == f"error: no Ray cluster at {ADDRESS}: Connection refused"
    assert hint == "hint:  check --address; --address local trains in a Ray of its own on this machine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("words", [["run", "a.yaml"], ["doctor"], ["resume", "results/a"]], ids=lambda words: words[0])
def test_address_of_a_client_is_refused(words: list[str], tmp_path: Path) -> None:
    done = in_folder(tmp_path, *words, "--ray-address", "ray://head:10001")
    assert done.returncode == 2
    command = "ray job submit --address http://head:8265 -- rlexp run FILE --address auto"
    assert f"hint:  with rlexp[cluster] installed here and on the head: {command}\n" in done.stderr


def test_local_is_this_machine(tmp_path: Path) -> None:
    done = in_folder(tmp_path, "check", "a.yaml", "--address", "local", RAY_ADDRESS=ADDRESS)
    assert done.returncode == 0, done.stderr


LOADED = """
import sys
sys.argv = ["rlexp", "join", sys.argv[1], "--for", "2s"]
from rlexp.cli import main
try:
    main()
finally:
    print(sorted({"ray", "torch"} & sys.modules.keys()))
"""
SECRET = "redis://:geheim@127.0.0.1:9"


def test_board_that_is_away_is_tried_until_the_time_is_over_without_ray_and_torch(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    command = [sys.executable, "-c", LOADED, DEAD]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert "trying again in" in done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["join"], "error: no board is given"),
        (["join", DEAD, "--for", "long"], "error: --for long is not a valid duration"),
        (["join", DEAD, "--out", "here"], "error: --out is for trainers"),
        (["join", DEAD, "--address", "head:6379"], "error: --address is for trainers"),
        (
            ["join", DEAD, "--as", "trainer", "--address", "ray://head:10001"],
            "error: --address ray://head:10001 is not",
        ),
        (["run", "a.yaml", "--board", SECRET, "--address", "head:6379"], "error: the cluster's head keeps the command"),
        (["resume", "a", "--board", SECRET, "--address", "head:6379"], "error: the cluster's head keeps the command"),
        (["join", DEAD, "--as", "trainer", "--max-memory", "much"], "error: --max-memory much is not a valid size"),
        (["join", DEAD, "--as", "trainer", "--max-memory", "9" * 400 + "GB"], "error: --max-memory 99999999999"),
        (["sweep", "a.yaml", "--board", DEAD], "error: --board is for rlexp run: a sweep has many trials"),
        (["join", DEAD, "--token", "rlexp-token-1-geheim"], "error: --token takes @FILE"),
        (["run", "a.yaml", "--board", DEAD, "--keys", "rlexp-master-1-geheim"], "error: --keys takes @FILE"),
        (["join", "redis://:geheim@8.8.8.8"], "error: redis://:***@8.8.8.8:6379 is a public address"),
    ],
)
def test_wrong_options_end_with_2_and_no_password(words: list[str], error: str, tmp_path: Path) -> None:
    done = in_folder(tmp_path, *words, RLEXP_BOARD="")
    assert done.returncode == 2
    assert done.stderr.startswith(error)
    assert "geheim" not in done.stderr + done.stdout


def test_wrong_password_ends_with_1_and_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with running_redis("geheim") as server:
        address = f"redis://127.0.0.1:{server.port}"
        done = in_folder(tmp_path, "join", address, RLEXP_BOARD_PASSWORD="falsch")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert "falsch" not in done.stderr


def test_interrupt_ends_all_processes_with_130(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with running_redis() as server:
        command = [sys.executable, "-m", "rlexp", "join", server.url, "--processes", "2"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            waiting = [process.stderr.readline() for _ in range(2)]
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
    assert all("no task has a free seat; waiting" in line for line in waiting)


def test_task_that_wants_a_token_ends_an_actor_without_one_with_2(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    pytest.importorskip("cryptography")
    with running_redis() as server:
        board = open_board(parse_address(server.url))
        board.announce(signed_task(Task("t1", "small", 1), MasterKey.new().keys("t1")))
        assert board.lead("t1", "trainer", 600.0) is not None
        done = in_folder(tmp_path, "join", server.url, "--task", "t1")
        board.close()
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[0] == "error: task t1 (small) takes only actors with a join token"
    assert "--token @FILE" in done.stderr
