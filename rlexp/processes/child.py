"""Child processes: starting one in a group of its own, and ending it within a time limit.

A ChildProcess runs a module of ours, which may hang or die without harm to the command. It gets a request, a line of
JSON on stdin, and writes messages to the descriptor argv[1], a line of JSON each.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import rlexp

PARENT_VARIABLE: Final = "RLEXP_JOIN_PARENT"
"""Environment variable of a process of ``rlexp join --processes``: the pid of the process with which it ends."""
_PACKAGES: Final = str(Path(rlexp.__file__).parents[1])


def own_program(module: str, *words: str) -> list[str]:
    """Return the command that runs a module; ``-m`` alone would search the current folder first for every module."""
    return [sys.executable, "-P", "-m", module, *words]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which ``own_program`` finds this package, wherever it is."""
    paths = (_PACKAGES, environment.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


Child = subprocess.Popen[bytes]
Stream = int | IO[bytes] | None
"""A descriptor or file of this process, or subprocess's value for none and for a pipe; None: the same as here."""


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    passed: Sequence[int] = (),
    own_session: bool = False,
    ends_with_parent: bool = False,
) -> Child:
    """Start a process in a group of its own, where Ctrl-C of a terminal does not reach it. Raises OSError.

    ``passed``: further descriptors that it gets. ``own_session``: it has no terminal, and the system first divides the
        cores between sessions, whatever the priorities of their processes. ``ends_with_parent``: on Linux it is killed
        when this process dies.
    """
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(passed),
        start_new_session=own_session,
        process_group=None if own_session else 0,
        preexec_fn=partial(_end_with, os.getpid()) if ends_with_parent and sys.platform == "linux" else None,
    )


def end_child(process: Child, timeout_s: float) -> None:
    """Ask a process to end, kill it if it has not ended after ``timeout_s``, and take its exit code."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    kill_child(process)


def kill_child(process: Child) -> None:
    """Kill a process if it has not ended, and take its exit code."""
    if process.poll() is None:
        process.kill()
    process.wait()


def how_it_ended(code: int) -> str:
    """Return the meaning of an exit code, for the end of a sentence."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end_with(parent: int) -> None:
    """Ask the system, between fork and exec, to kill this process when its parent dies."""
    _die_with_parent()
    if os.getppid() != parent:  # it has died before
        os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


END_TIMEOUT_S: Final = 5.0
"""Seconds that the process may take to vanish after it was killed."""
OUTPUT_BYTES: Final = 4000
"""Bytes of the process's last output that are stored, as they may say why it died."""
_PR_SET_PDEATHSIG: Final = 1
"""Option of prctl(2): the signal that a process gets when its parent dies."""

Message = Mapping[str, Any]
Send = Callable[..., None]
"""A function that writes a message: its kind and its content."""


class ChildProcess:
    """Owns the process from construction to ``close``."""

    def __init__(self, module: str, request: Message, variables: Mapping[str, str]) -> None:
        """Start it in a process group of its own, with ``variables`` in addition to this process's."""
        self._receiver, sender = os.pipe()
        self._process = start_child(
            own_program(module, str(sender)),
            environment=own_environment({**os.environ, **variables}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            passed=(sender,),
            own_session=True,
        )
        os.close(sender)
        assert self._process.stdout is not None
        self._pending = b""
        self._tail = OutputTail(self._process.stdout)
        with suppress(BrokenPipeError):  # it is dead already, so its messages end at once
            self.send(request)

    def send(self, message: Message) -> None:
        """Write it a further line; blocks while it does not read. Raises OSError or ValueError if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def message(self, timeout_s: float) -> Message | None:
        """Return its next message, or None if it has ended; raises TimeoutError if none comes in time."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._receiver], [], [], max(deadline_s - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            data = os.read(self._receiver, 65536)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        found: Message = json.loads(line)
        return found

    @property
    def printed(self) -> str:
        """Its last output so far."""
        return self._tail.kept

    def how_it_ended(self) -> str:
        """Return how it ended, for the end of a sentence; call it after its last message."""
        return how_it_ended(self._process.wait(END_TIMEOUT_S))

    def last_line(self) -> str:
        """Return the last non-empty line of its output, after the output has ended."""
        lines = self._tail.text().strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End it, and the processes that it started in its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._tail.close()
        os.close(self._receiver)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class OutputTail:
    """Reads a stream to its end in its own thread, and stores the last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @property
    def kept(self) -> str:
        """The last of the stream, so far."""
        return self._kept.decode(errors="replace")

    def text(self) -> str:
        """Return the last part of the stream, after it has ended."""
        self._thread.join(END_TIMEOUT_S)
        return self.kept

    def close(self) -> None:
        """Stop reading; the other end is closed, or held by a process that left the process group."""
        self._thread.join(END_TIMEOUT_S)
        if not self._thread.is_alive():
            self._stream.close()

    def _read(self) -> None:
        while data := os.read(self._stream.fileno(), 65536):
            self._kept = (self._kept + data)[-OUTPUT_BYTES:]


def answer(serve: Callable[[Message, Send], None], *, ends_with_command: bool = True) -> None:
    """Run the process's side: pass the request to ``serve``, and its messages to the command.

    ``ends_with_command``: it is killed if the command is; others end by themselves after stdin has ended.
    """
    if ends_with_command and sys.platform == "linux":
        _die_with_parent()
    sender = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")

    def send(kind: str, **content: Any) -> None:
        sender.write(json.dumps({"kind": kind, **content}) + "\n")
        sender.flush()

    serve(json.loads(sys.stdin.readline()), send)
