"""What drills are made of: a temporary folder, commands that run in it, and all the processes that come of them.

The drills by name.
"""

from __future__ import annotations

import json
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
from typing import IO, Any

import psutil

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).with_name("rlexp")
"""What is installed as ``rlexp``."""
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

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind so far."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of results so far."""
        return [event["result"] for event in self.events_of("result")]

    @property
    def notes(self) -> list[str]:
        """The texts of the notes so far."""
        return [event["text"] for event in self.events_of("note")]

    @property
    def last_words(self) -> str:
        """Why its only trial ended."""
        (end,) = self.events_of("trial_end")
        return str(end["message"])

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

    def wait_until_it_learns(self, updates: int = 10, steps: int = 0) -> dict[str, Any]:
        """Return the next row by which it has made so many updates and taken so many steps."""
        return self.wait_for_result(
            lambda row: row["info"]["num_updates"] >= updates and row["timesteps_total"] >= steps
        )

    def wait_for_start(self) -> dict[str, Any]:
        """Return the next event that a trial starts."""
        return self.wait_for("start of a trial", lambda event: event["event"] == "trial_start")

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

    def end_with(self, *codes: int, timeout_s: float = DEADLINE_S) -> int:
        """Return its exit code, once it has ended by itself; check that it is one of ``codes``, without a traceback."""
        code = self.end(timeout_s)
        check(code in codes, f"exit {code}, not {' or '.join(map(str, codes))}: {self.stderr[-300:]}")
        check("Traceback" not in self.stderr, self.stderr[-300:])
        return code

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        """End a run by a signal; check that it ends as it should, and return the seconds that this took."""
        asked_s = time.monotonic()
        self.process.send_signal(number)
        self.end_with(128 + number)
        return time.monotonic() - asked_s

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

    def start_run(self, text: str, *arguments: object, name: str = "", **environment: str) -> Command:
        """Start ``rlexp run`` of an experiment in ``out``, with its events; ``name`` instead of the experiment's."""
        words = (self.write(f"{name or 'drill'}.yaml", text), "--out", self.out, *(("--name", name) if name else ()))
        return self.start("run", *words, "--json", *arguments, **environment)

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

    def start_in(self, folder: Path, *words: object, **environment: str) -> Command:
        """Start a program, such as SCRIPT, in a folder."""
        return self._started(("sh", "-c", 'cd "$0" && exec "$@"', str(folder), *map(str, words)), environment)

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

    def kill(self, command: Command) -> float:
        """Kill a command with -9; return how long it takes until no process of the drill is left."""
        command.process.kill()
        killed_s = time.monotonic()
        command.process.wait()
        self.check_nothing_lingers()
        return time.monotonic() - killed_s

    def check_nothing_lingers(self) -> None:
        """Check that the processes of commands that have ended are gone."""
        left = self.lingering()
        check(not left, f"still there: {left}")

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


def own_bytes(process: psutil.Process) -> int:
    """Return the bytes that a process holds for itself alone; none where it has ended."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0


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


@dataclass(frozen=True)
class Drill:
    """Something that is broken on purpose."""

    number: int
    """By which it is listed."""
    name: str
    about: str
    is_long: bool
    """It takes several minutes, others one at most."""
    play: Play
    """Breaks it, checks what comes of it, and returns the evidence; raises DrillError."""


DRILLS: dict[str, Drill] = {}


def drill(number: int, name: str, is_long: bool = False) -> Callable[[Play], Play]:
    """Register a function as a drill; its docstring says what it is about."""

    def register(play: Play) -> Play:
        DRILLS[name] = Drill(number, name, (play.__doc__ or "").strip().splitlines()[0], is_long, play)
        return play

    return register
