"""The processes that benchmarks start: each is bounded in time, and ended with all that it started itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Timer
from typing import Any, ParamSpec, TypeVar

import psutil

from rlexp.cluster.environment import set_ray_environment

P = ParamSpec("P")
R = TypeVar("R")

RLEXP = (sys.executable, "-m", "rlexp")
PEERS_ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""For peers: one thread for each process, and without what ``in_own_process`` sets for rlexp's processes."""
END_TIMEOUT_S = 30.0
"""How long a command may take to end after SIGTERM: it saves a checkpoint and ends its Ray."""


def unwind_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, as Ctrl-C raises KeyboardInterrupt: processes and temporary folders are cleared."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def in_own_process(timeout_s: float, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what ``work`` returns in a fresh process with one BLAS thread, as the processes of a run have.

    Raises what it raises, and ``multiprocessing.TimeoutError`` after ``timeout_s`` seconds.
    """
    set_ray_environment(debug=False)
    with get_context("spawn").Pool(1) as pool:
        return pool.apply_async(work, args, kwargs).get(timeout_s)


@dataclass(frozen=True)
class Event:
    """What ``rlexp run --json`` said, and when."""

    seconds: float
    """Since the command was started."""
    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        """``start``, ``result``, ``end`` and others."""
        kind: str = self.fields["event"]
        return kind


def run_experiment(file: Path, out: Path, arguments: Sequence[str], timeout_s: float) -> list[Event]:
    """Return the events of ``rlexp run FILE`` and, last, one of kind ``exit`` for its end.

    It is asked to end after ``timeout_s`` seconds. Raises CalledProcessError where it fails, then as well.
    """
    return run_command([*RLEXP, "run", str(file), "--out", str(out), "--json", *arguments], timeout_s)


def run_command(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> list[Event]:
    """Return the events of a command that prints one JSON object a line and, last, one of kind ``exit`` for its end.

    It has this process's environment unless one is given. It is asked to end after ``timeout_s`` seconds. Raises
    CalledProcessError where it fails, then as well.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    watchdog = Timer(timeout_s, end, [process])
    watchdog.start()
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            events = [Event(time.monotonic() - started, json.loads(line)) for line in lines]
        code = process.wait(END_TIMEOUT_S)
    finally:
        watchdog.cancel()
        end(process)
    if code:
        raise subprocess.CalledProcessError(code, command)
    return [*events, Event(time.monotonic() - started, {"event": "exit"})]


def add_peer_options(parser: argparse.ArgumentParser, peers: Mapping[str, str]) -> None:
    """Add an option for the Python of each of ``peers``, with the package that it must have."""
    for name, package in peers.items():
        about = f"a Python that has {package}; that of .venv-{name.lower()} unless given, if it exists, else this one"
        parser.add_argument(f"--{name.lower()}", default=python_of(name), metavar="PYTHON", help=about)


def python_of(peer: str) -> str:
    """Return the Python of a peer's own environment, as `make bench-peers` makes it; this one if there is none."""
    own = Path(__file__).parents[1] / f".venv-{peer.lower()}" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def found_peers(options: argparse.Namespace, peers: Mapping[str, str]) -> dict[str, str]:
    """Return the Python of each that has its package; print the versions on stderr."""
    found = {}
    for name, package in peers.items():
        python = getattr(options, name.lower().replace("-", "_"))
        version = python and installed_version(python, package)
        print(f"{name}: {f'{package} {version}' if version else 'not installed, left out'}", file=sys.stderr)
        if python and version:
            found[name] = python
    return found


def installed_version(python: str, package: str) -> str | None:
    """Return the version of ``package`` that another Python has; None if it has none, or cannot be run."""
    return output_of(python, f"from importlib.metadata import version; print(version({package!r}))")


def output_of(python: str, program: str) -> str | None:
    """Return what a short program prints with another Python; None if it fails, or if there is no such Python."""
    try:
        command = [python, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=END_TIMEOUT_S)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def evaluate(run: Path, episodes: int, timeout_s: float) -> dict[str, Any]:
    """Return what ``rlexp evaluate RUN --json`` says; raises where it fails, or takes more than ``timeout_s``."""
    command = [*RLEXP, "evaluate", str(run), "--episodes", str(episodes), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=timeout_s)
    evaluation: dict[str, Any] = json.loads(done.stdout)
    return evaluation


def end(process: subprocess.Popen[str]) -> None:
    """Ask a command to end, then end it and all of its processes; returns at once where it has ended."""
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for member in family:
            _kill(member)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
