"""Runs ``rlexp`` commands in forks of a process that has imported it: the second that imports take is spent once.

Each command has a process, streams, an environment and an exit code of its own, as one that was started has. What
depends on the start of Python itself (signals, imports, encodings, the seed of hashes) is tested with a new process.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 60.0
IMPORTED = (
    *("rlexp.cli", "rlexp.terminal.comparison", "rlexp.terminal.results", "rlexp.terminal.logs"),
    *("gymnasium.envs.classic_control", "rich.console"),
)
"""What most commands import, none of which starts a thread; a fork would lack it."""


def rlexp(*words: object, cwd: Path | None = None, **environ: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command in this process's environment, changed by ``environ``: a variable that is None is taken away."""
    return _server().run([*map(str, words)], cwd or Path.cwd(), _changed(environ))


def rlexp_in_new_process(*words: object, **environ: str | None) -> subprocess.CompletedProcess[str]:
    """Start Python for a command; else like ``rlexp``."""
    command = [sys.executable, "-m", "rlexp", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=_changed(environ), timeout=TIMEOUT_S, check=False
    )


def on_terminal(*words: object, **environ: str | None) -> str:
    """Return what a command in a new process prints to a pseudo-terminal."""
    mine, theirs = os.openpty()
    command = [sys.executable, "-m", "rlexp", *map(str, words)]
    subprocess.run(command, stderr=theirs, stdout=theirs, env=_changed(environ), timeout=TIMEOUT_S, check=False)
    os.close(theirs)
    printed = os.read(mine, 65536)
    os.close(mine)
    return printed.decode()


LOADED = """
import gc, sys, rlexp.__main__
before = gc.get_threshold()
try:
    rlexp.__main__.main()
finally:
    assert gc.get_threshold() == before, "other collections"
    assert gc.get_freeze_count() > len(gc.get_objects()), "what was imported is searched for garbage at the end"
    print("loaded", *sorted(sys.modules))
"""


def loaded_by(*words: object, cwd: Path | None = None, **environ: str | None) -> set[str]:
    """Return the names of the modules that a command has loaded at its end, in a new process."""
    command = [sys.executable, "-c", LOADED, *map(str, words)]
    environment = _changed({"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": None, **environ})
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=TIMEOUT_S)
    word, *names = (done.stdout.splitlines() or [""])[-1].split()
    assert word == "loaded", done.stderr
    return set(names)


def _changed(environ: Mapping[str, str | None]) -> dict[str, str]:
    changed = {**os.environ, "PYTHONWARNINGS": "error", "CUDA_VISIBLE_DEVICES": "", **environ}
    return {name: value for name, value in changed.items() if value is not None}


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


class _Server:
    """The process that forks, where warnings are errors; it ends when this one does, which closes its stdin."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment
        )

    def run(self, words: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        with TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {"words": words, "cwd": str(cwd), "environment": environment, "streams": [str(out), str(err)]}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = self._exit_code(words)
            return subprocess.CompletedProcess(words, code, out.read_text("utf-8"), err.read_text("utf-8"))

    def _exit_code(self, words: list[str]) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_S)
        if not ready:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
            self._process.stdout.readline()  # the code of the killed one
            raise subprocess.TimeoutExpired(words, TIMEOUT_S)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


def serve() -> bool:
    """Fork for each line of stdin, and print the exit code of each; return True in a fork, False at the end."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(**json.loads(line))
            return True
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return False


def _become(words: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> None:
    """Make this fork what a new process of a command is."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    files: list[Any] = [(os.devnull, os.O_RDONLY), *((stream, os.O_WRONLY | os.O_CREAT) for stream in streams)]
    for number, (path, flags) in enumerate(files):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["rlexp", *words]


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # or each fork's garbage collections would copy all pages of what was imported
    if serve():
        from rlexp.__main__ import main

        main()
