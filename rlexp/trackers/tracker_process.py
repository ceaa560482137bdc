"""TrackerProcess: the process of one tracker, as the command sees it. It may hang or die; training goes on."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.tracking import TrackerName
from rlexp.errors import UsageError
from rlexp.processes.child import ChildProcess, Message
from rlexp.processes.family import SESSION, family_of, kill
from rlexp.trackers.messages import Kind

START_TIMEOUT_S: Final = 60.0
"""How long importing the library may take; it is done before anything is created."""
FINISH_TIMEOUT_S: Final = 30.0
"""How long the end of a run waits for what is not recorded yet."""
MAX_WAITING: Final = 10_000
"""Messages that may wait for a process that hangs; further rows are left out and counted."""
_NO_MESSAGE_S: Final = 3600.0
_JOIN_S: Final = 5.0
_MODULE: Final = "rlexp.trackers.serving"
_VARIABLES: Final[Mapping[TrackerName, Mapping[str, str]]] = {
    "wandb": {"WANDB_ERROR_REPORTING": "false"},
    "mlflow": {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    },
}
"""Unless the user sets them: the libraries report to their makers how they are used, and MLflow tries a server that
is away for many minutes before it says so."""


class TrackerProcess:
    """Owns the process and two threads, one for each direction, from construction to ``close``."""

    def __init__(self, name: TrackerName, options: Sequence[Mapping[str, Any]], out: Path) -> None:
        """Start it; ``options`` are those of the experiments of the run, which lies in ``out``."""
        self.name = name
        self._mark = Path(f"tracker-{uuid.uuid4().hex}")
        request = {"tracker": name, "options": [dict(each) for each in options], "out": str(out.absolute())}
        quiet = {key: value for key, value in _VARIABLES[name].items() if key not in os.environ}
        self._child = ChildProcess(_MODULE, request, {**quiet, SESSION: str(self._mark)})
        self._waiting: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._num_sent = self._num_handled = self._left_out = 0
        self._has_ended = threading.Event()
        """It is done, or dead."""
        self._is_finishing = False
        self._threads: list[threading.Thread] = []

    def wait_until_ready(self) -> list[str]:
        """Return where it will record, in words; raises UsageError where it cannot."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                message = self._child.message(deadline_s - time.monotonic())
            except TimeoutError:
                message_text = f"track: {self.name} was not loaded within {START_TIMEOUT_S:g} s"
                raise UsageError(message_text, "--track none trains without it") from None
            if message is None:
                what = f"track: the process of {self.name} {self._child.how_it_ended()}"
                last = self._child.last_line()
                raise UsageError(f"{what}: {last}" if last else what, "--track none trains without it")
            if message["kind"] == Kind.REFUSED:
                raise UsageError(message["message"], message["hint"])
            if message["kind"] == Kind.READY:
                break
        for target in (self._send_waiting, self._receive):
            self._threads.append(threading.Thread(target=target, name=f"tracker {self.name}", daemon=True))
            self._threads[-1].start()
        return list(message["places"])

    def send(self, kind: Kind, content: Mapping[str, Any]) -> None:
        """Let the process have a message; returns at once. Where too many wait, it is left out and counted."""
        if self._has_ended.is_set():
            return
        try:
            self._waiting.put_nowait({"kind": kind, **content})
        except queue.Full:
            with self._lock:
                self._left_out += 1
                if self._left_out == 1:
                    self._notes.append(f"{self.name} does not keep up: rows are left out there, not in the run's files")
            return
        with self._lock:
            self._num_sent += 1

    def drain_notes(self) -> list[str]:
        """Return what there is to say since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
            return notes

    def ask_to_finish(self) -> None:
        """Let it record what waits and end; returns at once."""
        if not self._is_finishing:
            self._is_finishing = True
            self.send(Kind.FINISH, {})

    def finish(self, deadline_s: float) -> list[str]:
        """Wait for its end, but not beyond a time of ``time.monotonic``; return the notes, also of what is missing."""
        self.ask_to_finish()
        self._has_ended.wait(max(deadline_s - time.monotonic(), 0))
        with self._lock:
            missing = self._num_sent - self._num_handled
            if self._left_out:
                self._notes.append(f"{self._left_out} rows were left out in {self.name}: it did not keep up")
            if not self._has_ended.is_set():
                what = f"{self.name} has not finished in time; {missing} of {self._num_sent} messages were not handled"
                self._notes.append(f"{what}, and the run's own files have every row")
        return self.drain_notes()

    def close(self) -> None:
        """End the process and all that it has started; idempotent."""
        self._has_ended.set()
        kill(family_of(self._mark))
        for thread in self._threads:
            if thread is not threading.current_thread():
                self._offer_end()
                thread.join(_JOIN_S)
        self._threads.clear()
        self._child.close()

    def _offer_end(self) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # the thread is not waiting: it fails at the closed pipe

    def _send_waiting(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                self._child.send(message)
            except (OSError, ValueError):  # it has ended, which _receive says
                return

    def _receive(self) -> None:
        while not self._has_ended.is_set():
            try:
                message = self._child.message(_NO_MESSAGE_S)
            except TimeoutError:
                continue
            if message is None:
                self._note_death()
                return
            with self._lock:
                if message["kind"] == Kind.NOTE:
                    self._notes.append(message["text"])
                elif message["kind"] == Kind.HANDLED:
                    self._num_handled += 1
            if message["kind"] == Kind.DONE:
                self._has_ended.set()

    def _note_death(self) -> None:
        if self._has_ended.is_set():  # close has killed it
            return
        with self._lock:
            what = f"the process of {self.name} {self._child.how_it_ended()}: nothing more is recorded there"
            self._notes.append(f"{what}, the run goes on")
        self._has_ended.set()
