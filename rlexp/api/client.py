"""Both sides of the training process: ``train`` starts it, passes output and Ctrl-C on, returns its Run or raises.

The program itself gets no Ray and no torch from a training, and keeps its own signal handlers and environment. It may
call from any thread and any number of times. The workers of Ray never see its ``__main__``.

The process, ``python -m rlexp.api.client FD``, reads a request (a line of JSON) from stdin, trains as the commands do,
and writes lines of JSON to the descriptor FD: pictures of the live display if a notebook shows them, then one answer,
``end`` with the exit code and the directory, or ``error``. When stdin ends, the program has ended: then trials save and
stop, as by SIGTERM.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from rlexp import errors
from rlexp.api.experiments import CODE_FOLDER, SingleExperiment, naming_arguments, source_of
from rlexp.api.runs import Run, failed_run
from rlexp.errors import ConfigError, Problem, ResourceError, RlexpError, TrialError
from rlexp.processes.child import (
    Child,
    Message,
    Send,
    answer,
    end_child,
    how_it_ended,
    own_environment,
    own_program,
    start_child,
)
from rlexp.processes.locks import RUN_FILE
from rlexp.processes.signals import SignalHandlers
from rlexp.tuning.request import Kind, Source, TrainingRequest

ShowPicture = Callable[[str, str], None]
"""Takes a picture of the live display, as HTML and as text."""
END_TIMEOUT_S: Final = 60.0
"""Seconds that the process may take to save and end after its answer, or after this program stops waiting."""
OUTPUT_TIMEOUT_S: Final = 2.0
"""Seconds that its output is read after its end: a process that it left behind may keep the streams open."""
_POLL_S: Final = 0.25
"""Seconds between two checks whether it has ended, if no stream says so."""
_OUTPUT_BYTES: Final = 4000
"""Bytes of its last output that are kept: they may say why it died."""
_OF_SIGNALS: Final = 128
"""Exit codes above this one are exit codes of signals."""
_MOST_INTERRUPTS: Final = 2
"""The first lets trials save, the second ends them; the next one kills."""


def train(kind: Kind, options: Mapping[str, Any]) -> Run:
    """Train and wait for the end; ``options``: arguments of :func:`rlexp.run`, ``sweep`` or ``resume``."""
    given = {**options, "command": sys.argv, "draws": is_notebook() and not options["quiet"]}
    source, experiments = Source(), options.get("experiments")
    if isinstance(experiments, SingleExperiment):
        source, overrides = experiments.source(Path(options["out"]) / CODE_FOLDER)
        given["overrides"] = (*overrides, *options["overrides"])
    elif experiments is not None:
        source = source_of(experiments, Path(options["out"]) / CODE_FOLDER)
    ended = train_in_process(TrainingRequest.of(kind, given, source=source))
    run = None if ended.directory is None or not (ended.directory / RUN_FILE).is_file() else Run.at(ended.directory)
    if ended.was_interrupted and ended.exit_code > _OF_SIGNALS:
        interrupted = KeyboardInterrupt()
        if run is not None:
            interrupted.add_note(_how_to_resume(run))
        raise interrupted
    if ended.exit_code > _OF_SIGNALS:
        name = signal.Signals(ended.exit_code - _OF_SIGNALS).name
        raise TrialError(f"the run was stopped by {name}", None if run is None else _how_to_resume(run))
    if run is None:
        raise TrialError("the run has no directory any more", "it was deleted or moved while it was trained")
    if ended.exit_code:
        raise failed_run(run)
    return run


def _how_to_resume(run: Run) -> str:
    return f"rlexp.resume({str(run.directory)!r}) continues from its checkpoints"


def is_notebook() -> bool:
    """Return whether what is printed goes below the cell of a notebook, which can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    has_kernel = getattr(shell, "kernel", None) is not None  # IPython in a terminal has none
    return has_kernel and type(sys.stdout).__module__.startswith("ipykernel.")


def notebook_output() -> ShowPicture:
    """Return what shows pictures below the cell, each in place of the one before."""
    display = import_module("IPython.display").display
    handles: list[Any] = []

    def show(html: str, text: str) -> None:
        picture = {"text/html": html, "text/plain": text}
        if handles:
            handles[0].update(picture, raw=True)
        else:
            handles.append(display(picture, raw=True, display_id=True))

    return show


@dataclass(frozen=True)
class Ended:
    """How the process has ended."""

    exit_code: int
    directory: Path | None
    """The directory of the run; None if there was none yet, or it is gone."""
    was_interrupted: bool
    """Whether Ctrl-C came meanwhile."""


def train_in_process(request: TrainingRequest) -> Ended:
    """Train, and wait for the end; raises the RlexpError that the process reports.

    Ctrl-C in the main thread lets the trials save and end, a second one ends them at once.
    """
    with (
        _TrainingProcess(request, notebook_output() if request.draws else None) as process,
        # Only the main thread gets Ctrl-C, and only if it is not ignored.
        SignalHandlers((signal.SIGINT,), lambda number, frame: process.interrupt()),
    ):
        process.wait()
    if process.answer.get("kind") == "error":
        error = reported(process.answer)
        raise error if request.source.env is None else naming_arguments(error)
    if not process.answer and not process.num_interrupts:
        raise TrialError(
            f"the process that trains {process.how_it_ended()}", process.tail.strip().rpartition("\n")[2] or None
        )
    directory = process.answer.get("directory")
    return Ended(
        int(process.answer.get("code", 128 + signal.SIGINT)),
        None if directory is None else Path(directory),
        process.num_interrupts > 0,
    )


class _TrainingProcess:
    """Owns the process from construction to ``close``; used by one thread, ``interrupt`` also by a signal handler."""

    def __init__(self, request: TrainingRequest, show: ShowPicture | None = None) -> None:
        """``show`` takes the pictures of its display, for which ``request`` asks."""
        self.answer: Mapping[str, Any] = {}
        """Its last message, once it has come: the others are pictures."""
        self.tail = ""
        """The last bytes of its output, if that passes through here."""
        self.num_interrupts = 0
        self._streams = _streams(request.quiet)
        self._received = b""
        self._show = show
        receiver, sender = os.pipe()
        self._receiver = os.fdopen(receiver, "rb")
        try:
            self._process = _started(sender, None if self._streams is None else subprocess.PIPE)
        except BaseException:
            self._receiver.close()
            raise
        finally:
            os.close(sender)
        with suppress(BrokenPipeError):  # it is dead already
            stdin = _given(self._process.stdin)
            stdin.write(json.dumps(request.to_json()).encode() + b"\n")
            stdin.flush()

    def wait(self) -> None:
        """Pass its output on until it has ended, or has not within END_TIMEOUT_S after its answer."""
        deadline = math.inf
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ, None)
            if self._streams is not None:
                selector.register(_given(self._process.stdout), selectors.EVENT_READ, _TextOutput(self._streams[0]))
                selector.register(_given(self._process.stderr), selectors.EVENT_READ, _TextOutput(self._streams[1]))
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(_POLL_S):
                    self._read(key, selector)
                deadline = min(deadline, time.monotonic() + self._remaining_s(selector))
        with suppress(subprocess.TimeoutExpired):  # `close` ends it then
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def _read(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        data = os.read(key.fd, 65536)
        if not data:
            selector.unregister(key.fileobj)
        elif key.data is None:
            *lines, self._received = (self._received + data).split(b"\n")
            for message in map(json.loads, lines):
                self._take(message)
        else:
            self.tail = (self.tail + key.data.write(data))[-_OUTPUT_BYTES:]

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["kind"] != "picture":
            self.answer = message
        elif self._show is not None:
            self._show(message["html"], message["text"])

    def _remaining_s(self, selector: selectors.BaseSelector) -> float:
        """Return the seconds to wait in the present state: infinite while it trains."""
        if self._process.poll() is not None:
            return OUTPUT_TIMEOUT_S
        is_ending = bool(self.answer) or self._receiver not in selector.get_map()
        return END_TIMEOUT_S if is_ending else math.inf

    def interrupt(self) -> None:
        """Do the same as Ctrl-C."""
        self.num_interrupts += 1
        if self.num_interrupts > _MOST_INTERRUPTS:
            self._process.kill()
        else:
            self._process.send_signal(signal.SIGINT)

    def how_it_ended(self) -> str:
        """Return how it ended, for the end of a sentence."""
        return how_it_ended(self._process.returncode)

    def close(self) -> None:
        """Let the process save and end if it has not ended; kill it if it does not."""
        end_child(self._process, END_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr, self._receiver):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> _TrainingProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _started(sender: int, output: int | None) -> Child:
    """Start the process, which writes its answer to the descriptor ``sender``."""
    return start_child(
        own_program("rlexp.api.client", str(sender)),
        environment=own_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        passed=(sender,),
        own_session=True,  # Ctrl-C is passed on once, not sent by the terminal as well
    )


class _TextOutput:
    """Writes bytes that come in pieces to a stream of text, or nowhere."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> str:
        """Write the characters that are complete, and return them."""
        text = self._decoder.decode(data)
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
        return text


def _streams(quiet: bool) -> tuple[IO[str] | None, IO[str] | None] | None:
    """Return where output is written; None: the process writes to the same terminal or file itself.

    In a notebook, or where a program has replaced ``sys.stdout``, the output passes through here.
    """
    if quiet:
        return None, None
    if not (_is_own(sys.stdout, 1) and _is_own(sys.stderr, 2)):
        return sys.stdout, sys.stderr
    sys.stdout.flush()
    return None


def _is_own(stream: IO[str], number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):  # a notebook's has none
        return False


def _given(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


_CLASSES: Final[Mapping[str, type[RlexpError]]] = {
    cls.__name__: cls
    for cls in (
        RlexpError,
        errors.UsageError,
        errors.ResumeError,
        errors.CheckpointError,
        errors.TrialError,
        errors.EnvError,
        errors.NotFiniteError,
    )
}
"""The classes of errors that are made of a message and a hint."""


def described(error: RlexpError) -> dict[str, Any]:
    """Return what ``reported`` makes an error of the same class of, or of the nearest class that programs know."""
    return {
        "classes": [cls.__name__ for cls in type(error).__mro__],
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "problems": [[problem.where, problem.message, problem.hint] for problem in error.problems],
    }


def reported(description: Mapping[str, Any]) -> RlexpError:
    """Return the error that ``described`` has described."""
    message, hint, names = description["message"], description["hint"], description["classes"]
    problems = [Problem(*problem) for problem in description["problems"]]
    if ConfigError.__name__ in names:
        return ConfigError(problems)
    if ResourceError.__name__ in names:
        return ResourceError(message, hint, problems[1:])
    error = _CLASSES[next(name for name in names if name in _CLASSES)](message, hint)
    error.exit_code = description["exit_code"]
    return error


def _serve(content: Message, send: Send) -> None:
    """Answer the one request in the training process; the exit code is the exit code of the command."""
    from rlexp.cluster.session import choose
    from rlexp.commands import answers

    request = TrainingRequest.from_json(content)

    def draw(html: str, text: str) -> None:
        send("picture", html=html, text=text)

    threading.Thread(target=_end_with_program, daemon=True).start()
    try:
        joining = choose(request.address, os.environ)
        trained = answers.answer(replace(request, joining=joining, draw=draw if request.draws else None))
        code, directory = trained.exit_code, trained.directory
        send("end", code=code, directory=None if directory is None else str(directory))
    except RlexpError as error:
        code = error.exit_code
        send("error", **described(error))
    sys.exit(code)


def _end_with_program() -> None:
    """Ask this process to save and end once the other end of stdin is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    answer(_serve, ends_with_command=False)
