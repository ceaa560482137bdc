"""Processes that are forked for a raylet: what they are given, and which ones are started anew instead."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlexp.cluster.quick_start import raylet_script
from rlexp.cluster.quick_start.raylet import ForkServer, raylet_command
from rlexp.cluster.quick_start.raylet_script import START
from rlexp.cluster.session import Joining, prepared
from rlexp.cluster.shortcuts import VARIABLE
from rlexp.processes.family import SESSION, has_ended, processes_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
TIMEOUT_S = 20.0
LIMIT = (99, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""Open files: not as many as the server may have."""
SCORE = "987"
WHAT_IT_IS = """
import json, os, random, resource, signal, sys
import numpy
print(json.dumps({
    "name": __name__, "words": sys.argv[1:], "path": sys.path[0], "pid": os.getpid(), "parent": os.getppid(),
    "group": os.getpgrp(), "folder": os.getcwd(), "variable": os.environ.get("GIVEN"), "read": sys.stdin.read(),
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE), "score": open("/proc/self/oom_score_adj").read().strip(),
    "session": os.getsid(0), "all_paths": sys.path, "imported": os.environ.get("SET_AT_IMPORT"),
    "loaded": "wave" in sys.modules, "random": [random.random(), float(numpy.random.random())],
}))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "process.py"
    path.write_text(WHAT_IT_IS)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(("numpy", "wave"))
    yield server
    server.close()


def started(socket: Path, *words: str | Path) -> dict[str, Any]:
    """Return what the process says of itself that a raylet would have started by these words."""
    command = [sys.executable, "-I", "-S", str(raylet_script.__file__), START, str(socket), *map(str, words)]

    def set_up() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        resource.setrlimit(resource.RLIMIT_NOFILE, LIMIT)
        Path("/proc/self/oom_score_adj").write_text(SCORE)

    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GIVEN": "a value"},
        cwd="/",
        preexec_fn=set_up,
    ) as process:
        printed, _ = process.communicate("a text", TIMEOUT_S)
    assert process.returncode == 0
    return {**json.loads(printed), "launcher": process.pid}


def test_forked_process_is_as_if_it_had_been_started(server: ForkServer, script: Path) -> None:
    found = started(server.path, "setup.py", script, "--a=1", "b c", "--language=PYTHON")
    assert (found["parent"], found["loaded"]) == (server.pid, True)
    assert (found["name"], found["words"], found["path"]) == ("__main__", ["--a=1", "b c"], str(script.parent))
    assert (found["folder"], found["variable"], found["read"]) == ("/", "a value", "a text")
    assert found["blocked"] == [signal.SIGTERM]
    assert found["group"] == found["pid"]
    assert (found["limit"], found["score"]) == (list(LIMIT), SCORE)
    assert found["session"] == os.getsid(0)  # with its share of the cores


@pytest.mark.parametrize("is_safe", [False, True])
def test_forked_process_searches_the_path_that_it_would_have(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, is_safe: bool
) -> None:
    vendored = "/no/folder"
    (tmp_path / "has_folder.py").write_text(f"import sys\nsys.path.insert(0, {vendored!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if is_safe:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    own = started(tmp_path / "no socket", "setup.py", script)["all_paths"]
    with closing(ForkServer(("has_folder",))) as server:
        found = started(server.path, "setup.py", script)
    assert found["parent"] == server.pid
    place = 0 if is_safe else 1
    assert found["all_paths"] == [*own[:place], vendored, *own[place:]]


def test_forked_process_has_the_variables_that_imports_set(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets_it.py").write_text("import os\nos.environ['SET_AT_IMPORT'] = 'yes'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(ForkServer(("sets_it",))) as server:
        found = started(server.path, "setup.py", script)
    assert (found["parent"], found["imported"], found["variable"]) == (server.pid, "yes", "a value")


def test_forked_processes_draw_other_random_numbers(server: ForkServer, script: Path) -> None:
    first, second = (started(server.path, "setup.py", script)["random"] for _ in range(2))
    assert [a != b for a, b in zip(first, second, strict=True)] == [True, True]


def test_process_starts_itself_where_nothing_forks_it(tmp_path: Path, script: Path) -> None:
    found = started(tmp_path / "no socket", "setup.py", script, "--a=1", "--language=PYTHON")
    assert (found["pid"], found["words"], found["loaded"]) == (found["launcher"], ["--a=1"], False)


def test_process_is_not_waited_for_where_the_server_is_stopped(script: Path, tmp_path: Path) -> None:
    unwanted = tmp_path / "unwanted.py"
    unwanted.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with closing(ForkServer(("wave",))) as server:
        assert started(server.path, "setup.py", script)["parent"] == server.pid
        process = psutil.Process(server.pid)
        process.suspend()
        before_s = time.monotonic()
        assert not raylet_script.forked(str(server.path), [str(unwanted)])
        assert time.monotonic() - before_s < raylet_script.TIMEOUT_S / 2
        process.resume()  # it forks no process for what nobody waits for any more
        assert started(server.path, "setup.py", script)["parent"] == server.pid
        deadline = time.monotonic() + TIMEOUT_S
        while not all(map(has_ended, process.children())):
            assert time.monotonic() < deadline
    assert not (tmp_path / "ran").exists()


def test_process_with_a_runtime_environment_is_not_forked(server: ForkServer, script: Path) -> None:
    words = ["--language=PYTHON", "--serialized-runtime-env-context={}"]
    found = started(server.path, script, "worker.py", *words)
    assert (found["pid"], found["words"]) == (found["launcher"], ["worker.py", *words])


@pytest.mark.parametrize(
    "imported",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "import ray\nray.UniqueID.from_random()\n",
    ],
    ids=["starts a thread", "lets Ray draw a random number"],
)
def test_nothing_is_forked_from_a_process_that_forks_would_share_too_much_with(
    imported: str, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported.py").write_text(imported)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(ForkServer(("imported",))) as server:
        found = started(server.path, "setup.py", script)
    assert found["pid"] == found["launcher"]


def test_modules_that_cannot_be_imported_are_left_to_the_processes(script: Path) -> None:
    with closing(ForkServer(("no_such_module", "wave"))) as server:
        found = started(server.path, "setup.py", script)
    assert (found["parent"], found["loaded"]) == (server.pid, True)


def test_server_and_its_folder_end_with_a_killed_command() -> None:
    program = (
        "import sys\nfrom rlexp.cluster.quick_start.raylet import ForkServer\nserver = ForkServer(('wave',))\n"
        "print(server.pid, server.folder.path, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        pid, folder = command.stdout.readline().split()
        process = psutil.Process(int(pid))
        deadline = time.monotonic() + TIMEOUT_S
        while process not in processes_of(Path(folder)):  # for a moment it has no environment at all
            assert time.monotonic() < deadline
        guard = next(child for child in psutil.Process(command.pid).children() if child != process)
        command.kill()
        with suppress(psutil.NoSuchProcess):
            process.wait(TIMEOUT_S)
        with suppress(psutil.NoSuchProcess):
            guard.wait(TIMEOUT_S)
    assert not Path(folder).exists()


def test_nothing_is_forked_where_a_socket_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv(VARIABLE, raising=False)
    with prepared(Joining(), debug=False) as joining:
        assert joining.fork_server is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("value", "is_started"), [("0", False), ("1", True)])
def test_fork_server_is_started_unless_the_variable_turns_it_off(
    value: str, is_started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with prepared(Joining(), debug=False) as joining:
        assert (joining.fork_server is not None) == is_started


def test_clusters_have_no_fork_server() -> None:
    joining = Joining("somewhere:6379")
    with prepared(joining, debug=False) as same:
        assert same is joining


def test_raylet_asks_the_server_for_its_processes_and_for_none_ahead() -> None:
    own, other = "--python_worker_command=", f"--python_worker_command={sys.executable}x setup.py"
    ahead = "--num_prestart_python_workers="
    given = [f"{own}{sys.executable} setup.py worker.py --a", other, f"{ahead}2"]
    script = str(raylet_script.__file__)
    asks = f"{own}{sys.executable} -I -S {script} start /folder/socket setup.py worker.py --a"
    assert raylet_command(given, 3, Path("/folder/socket")) == [asks, other, f"{ahead}0"]
    assert raylet_command(given, 3) == [*given[:2], f"{ahead}3"]


@pytest.mark.ray
def test_rays_processes_are_forked(ray_session: ForkServer | None) -> None:
    import ray

    if ray_session is None:
        pytest.skip("the Ray of all tests was started without a fork server")

    @ray.remote(num_cpus=0)
    def pids() -> tuple[int, int, str, int]:
        return os.getpid(), os.getppid(), ray.get_runtime_context().get_job_id(), os.nice(0)

    pid, parent, job, niceness = ray.get(pids.remote())
    assert (parent, job) == (ray_session.pid, ray.get_runtime_context().get_job_id())
    assert niceness == os.nice(0)
    assert psutil.Process(pid).environ()[SESSION] == str(ray_session.folder.path)
