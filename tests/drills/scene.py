"""What drills are made of: a temporary folder, commands that run in it, and all the processes that come of them.

The drills by name.

What a drill's run left in its directory.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import psutil
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = float(os.environ.get("RLEXP_DRILL_DEADLINE_S", "60"))
"""Bound of every wait in a drill; a machine on which much else runs needs more."""
LINGER_S = 10.0
"""How long processes may take to vanish after their command has ended."""
MARK = "RLEXP_DRILL"
"""An environment variable that every process of a drill inherits: its value is the drill's own."""


class DrillError(AssertionError):
    """A drill failed: what was seen instead."""


def check(holds: object, otherwise: str) -> None:
    """Raise DrillError with ``otherwise`` unless something holds."""
    if not holds:
        raise DrillError(otherwise)


class Command:
    """A ``rlexp`` command that runs beside the drill, and what it says; ended by its scene at the latest."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.started_s = time.monotonic()
        self.events: list[dict[str, Any]] = []
        """What ``--json`` has said so far, as far as it was waited for."""
        self.output: list[str] = []
        """Lines on stdout that nobody waited for."""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self.process = subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [self._read(self.process.stdout, self._lines.put), self._read(self.process.stderr, self._note)]

    @property
    def stderr(self) -> str:
        """What it has said on stderr."""
        return "".join(self._errors)

    def wait_for(self, what: str, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next event that ``is_it``; ``what`` names it where it does not come in time."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise DrillError(f"no {what} within {DEADLINE_S:g} s; stderr: {self.stderr[-500:]}") from None
            if line is None:
                self._lines.put(None)
                raise DrillError(f"it ended before {what}; stderr: {self.stderr[-500:]}")
            event = _parsed(line)
            self.events.append(event)
            if is_it(event):
                return event

    def wait_for_result(self, is_it: Callable[[dict[str, Any]], bool] = lambda row: True) -> dict[str, Any]:
        """Return the next row of results that ``is_it``."""
        event = self.wait_for("result", lambda event: event["event"] == "result" and is_it(event["result"]))
        row: dict[str, Any] = event["result"]
        return row

    def wait_for_note(self, pattern: str) -> str:
        """Return the next note that matches a regular expression."""
        event = self.wait_for(
            f"note like {pattern!r}", lambda event: event["event"] == "note" and bool(re.search(pattern, event["text"]))
        )
        return str(event["text"])

    def end(self, timeout_s: float = DEADLINE_S) -> int:
        """Return its exit code, once it has ended by itself."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DrillError(f"it runs on after {timeout_s:g} s; stderr: {self.stderr[-500:]}") from None
        for reader in self._readers:
            reader.join(DEADLINE_S)
        while (line := self._lines.get()) is not None:
            self.output.append(line)
            if line.startswith('{"event"'):
                self.events.append(_parsed(line))
        self._lines.put(None)
        return code

    def close(self) -> None:
        """Wait until it has ended, which somebody has seen to, and close its pipes."""
        self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _note(self, line: str | None) -> None:
        if line is not None:
            self._errors.append(line)

    def _read(self, stream: IO[str] | None, take: Callable[[str | None], None]) -> threading.Thread:
        assert stream is not None

        def read() -> None:
            for line in stream:
                take(line)
            take(None)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread


class Scene:
    """Owns a drill's folder and processes. Nothing of it remains after ``close``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._mark = uuid.uuid4().hex
        self._commands: list[Command] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def start(self, *arguments: object, **environment: str) -> Command:
        """Start ``rlexp ARGUMENTS``."""
        return self._started((sys.executable, "-m", "rlexp", *map(str, arguments)), environment)

    def start_behind(self, prefix: Sequence[str], *arguments: object, **environment: str) -> Command:
        """Start ``rlexp ARGUMENTS`` behind the words of another command: one that says where it runs."""
        return self._started((*prefix, sys.executable, "-m", "rlexp", *map(str, arguments)), environment)

    def run_with_small_disk(self, disk: Path, size: str, *arguments: object, **environment: str) -> Command:
        """Run ``rlexp ARGUMENTS`` and wait for its end; it sees an empty file system of ``size`` at ``disk``."""
        disk.mkdir()
        return self.run_in_shell(f"mount -t tmpfs -o size={size} none {disk} && exec", *arguments, **environment)

    def run_in_shell(self, script: str, *arguments: object, **environment: str) -> Command:
        """Run ``rlexp ARGUMENTS`` at the end of a line of shell script, with mounts of its own; wait for its end."""
        words = ("unshare", "-rm", "sh", "-c", f'{script} "$@"', "sh", sys.executable, "-m", "rlexp", *arguments)
        command = self._started(tuple(map(str, words)), environment)
        command.end()
        return command

    def run_in(self, folder: Path, *arguments: object) -> Command:
        """Run the installed script ``rlexp ARGUMENTS`` in a folder and wait for its end."""
        script = Path(sys.executable).with_name("rlexp")
        words = ("sh", "-c", 'cd "$0" && exec "$@"', folder, script, *arguments)
        command = self._started(tuple(map(str, words)), {})
        command.end()
        return command

    def environment(self) -> dict[str, str]:
        """Return the environment of the drill's processes."""
        return {
            **os.environ,
            MARK: self._mark,
            "TMPDIR": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    def _started(self, words: tuple[str, ...], environment: dict[str, str]) -> Command:
        command = Command(words, {**self.environment(), **environment})
        self._commands.append(command)
        return command

    def run(self, *arguments: object, **environment: str) -> Command:
        """Start ``rlexp ARGUMENTS`` and wait for its end."""
        command = self.start(*arguments, **environment)
        command.end()
        return command

    def processes(self, kind: str | tuple[str, ...] = "") -> list[psutil.Process]:
        """Return the drill's processes that are alive; only those whose command line begins with (one of) ``kind``."""
        return [process for process in self._marked() if _command_line(process).startswith(kind)]

    def one(self, kind: str | tuple[str, ...]) -> psutil.Process:
        """Return a process of that kind, as soon as there is one."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := self.processes(kind)):
            check(time.monotonic() < deadline, f"no process {kind}")
            time.sleep(0.05)
        return found[0]

    def lingering(self) -> list[str]:
        """Return the command lines of processes that are still there LINGER_S after their command has ended."""
        _, alive = psutil.wait_procs(self.processes(), timeout=LINGER_S)
        return [_command_line(process)[:80] for process in alive]

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for command in self._commands:
            command.close()

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


def _parsed(line: str) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        raise DrillError(f"it printed {line!r} among its events") from None
    return event


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


Play = Callable[[Scene], str]
Pace = Literal["fast", "minute", "long"]
"""Seconds, and part of ``make test``; a minute at most; several minutes."""


@dataclass(frozen=True)
class Drill:
    """Something that is broken on purpose."""

    number: int
    """By which it is listed."""
    name: str
    about: str
    pace: Pace
    play: Play
    """Breaks it, checks what comes of it, and returns the evidence; raises DrillError."""


DRILLS: dict[str, Drill] = {}


def drill(number: int, name: str, pace: Pace = "minute") -> Callable[[Play], Play]:
    """Register a function as a drill; its docstring says what it is about."""

    def register(play: Play) -> Play:
        DRILLS[name] = Drill(number, name, (play.__doc__ or "").strip().splitlines()[0], pace, play)
        return play

    return register


STEPS_TAG = "ray/tune/timesteps_total"


def trial_of(run: Path) -> Path:
    """Return the directory of a run's only trial."""
    (trial,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["trials"]
    return run / str(trial["directory"])


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the rows of its ``result.json``."""
    lines = (trial_of(run) / "result.json").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def checkpoints_of(run: Path) -> list[Path]:
    """Return the checkpoints of its trial, the oldest first."""
    return sorted(path for path in trial_of(run).glob("checkpoint_*") if path.name[-1].isdigit())


def iteration_of(checkpoint: Path) -> int:
    """Return the iteration in a checkpoint's name."""
    return int(checkpoint.name.split("_")[1])


def check_no_step_twice(run: Path) -> None:
    """Check that result.json, progress.csv and TensorBoard have every iteration once, in order."""
    rows = rows_of(run)
    iterations = [row["training_iteration"] for row in rows]
    check(iterations == list(range(1, len(rows) + 1)), f"result.json has iterations {iterations}")
    steps = [row["timesteps_total"] for row in rows]
    check(steps == sorted(set(steps)), f"result.json has steps {steps}")
    with (trial_of(run) / "progress.csv").open(encoding="utf-8", newline="") as file:
        cells = [int(row["training_iteration"]) for row in csv.DictReader(file)]
    check(cells == iterations, f"progress.csv has iterations {cells}")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every point that is taken back
    events = EventAccumulator(str(trial_of(run)), size_guidance={"scalars": 0})
    events.Reload()
    points = [event.step for event in events.Scalars(STEPS_TAG)]
    check(points == steps, f"TensorBoard has steps {points}, result.json {steps}")


def stopped_run(scene: Scene, text: str, iterations: int = 4) -> Path:
    """Run an experiment for some iterations, stop it with SIGINT and return its directory."""
    command = scene.start("run", scene.write("drill.yaml", text), "--out", scene.out, "--name", "drill", "--json")
    command.wait_for_result(lambda row: row["training_iteration"] >= iterations)
    stop(command)
    return scene.out / "drill"


def stop(command: Command) -> None:
    """Stop a run with SIGINT; check that it ends as it should."""
    command.process.send_signal(signal.SIGINT)
    code = command.end()
    check(code == 130, f"exit {code}: {command.stderr[-300:]}")
