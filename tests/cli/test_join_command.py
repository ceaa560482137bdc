"""``rlexp join`` as a process: what it loads, what it refuses, how it ends.

Commands look at the cluster that the environment or an option names before they create anything.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import MasterKey, signed_task
from rlexp.board.servers import open_board
from rlexp.processes.family import SESSION
from tests.cli import forked_commands
from tests.lab.brokers import running_redis

ADDRESS = "127.0.0.1:9"  # nothing listens at the discard port
EXPERIMENT = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"


def rlexp(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.yaml").write_text(EXPERIMENT)
    return forked_commands.rlexp(*words, cwd=folder, **{SESSION: None, **variables})


@pytest.mark.parametrize(
    "words",
    [["run", "a.yaml"], ["sweep", "a.yaml", "--sweep", "lr=1,2"], ["train", "-f", "a.yaml"], ["check", "a.yaml"]],
    ids=lambda words: words[0],
)
def test_command_looks_for_the_cluster_of_the_environment(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words, RAY_ADDRESS=ADDRESS)
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()[-2:]
    assert error == f"error: no Ray cluster at {ADDRESS}: Connection refused"
    assert hint == "hint:  check --address; --address local trains in a Ray of its own on this machine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("words", [["run", "a.yaml"], ["doctor"], ["resume", "results/a"]], ids=lambda words: words[0])
def test_address_of_a_client_is_refused(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words, "--ray-address", "ray://head:10001")
    assert done.returncode == 2
    command = "ray job submit --address http://head:8265 -- rlexp run FILE --address auto"
    assert f"hint:  with rlexp[cluster] installed here and on the head: {command}\n" in done.stderr


def test_local_is_this_machine(tmp_path: Path) -> None:
    done = rlexp(tmp_path, "check", "a.yaml", "--address", "local", RAY_ADDRESS=ADDRESS)
    assert done.returncode == 0, done.stderr


TIMEOUT_S = 150
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
DEAD = "redis://127.0.0.1:9"  # nothing listens at the discard port


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
    done = rlexp(tmp_path, *words, RLEXP_BOARD="")
    assert done.returncode == 2
    assert done.stderr.startswith(error)
    assert "geheim" not in done.stderr + done.stdout


def test_wrong_password_ends_with_1_and_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with running_redis("geheim") as server:
        address = f"redis://127.0.0.1:{server.port}"
        done = rlexp(tmp_path, "join", address, RLEXP_BOARD_PASSWORD="falsch")
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
        done = rlexp(tmp_path, "join", server.url, "--task", "t1")
        board.close()
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[0] == "error: task t1 (small) takes only actors with a join token"
    assert "--token @FILE" in done.stderr
