"""The command's side of its trackers: one process for each, and the senders of each trial's rows.

A process may hang or die, and training goes on. ``serving`` is the other side; ``client`` has their messages.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from rlexp.cluster.room.machine import is_installed, missing_tracker
from rlexp.config.keys.experiment import TrackerName
from rlexp.config.keys.trial import Trial
from rlexp.errors import UsageError
from rlexp.files import plain
from rlexp.processes.child import ChildProcess, Message
from rlexp.processes.family import SESSION, TemporaryFolder, family_of, kill
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.recorders import TrialTracker
from rlexp.runs.rows import scalars
from rlexp.runs.run_directory import trial_parameters
from rlexp.text import masked
from rlexp.trackers.client import Kind, TrackedRow, TrackedTrial

START_TIMEOUT_S: Final = 60.0
"""Seconds that importing the library may take; it is done before anything is created."""
FINISH_TIMEOUT_S: Final = 30.0
"""Seconds that the end of a run waits for rows that are not recorded yet."""
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
    """Owns the process, its temporary folder and two threads, one for each direction, from construction to ``close``.

    The libraries leave temporary files behind, as their processes are killed at the end.
    """

    def __init__(self, name: TrackerName, options: Sequence[Mapping[str, Any]], out: Path) -> None:
        """Start it; ``options``: the tracker options of the run's experiments; ``out``: the run's directory."""
        self.name = name
        self._folder = TemporaryFolder("tracker-")
        request = {"tracker": name, "options": [dict(each) for each in options], "out": str(out.absolute())}
        quiet = {key: value for key, value in _VARIABLES[name].items() if key not in os.environ}
        place = str(self._folder.path)
        self._child = ChildProcess(_MODULE, request, {**quiet, SESSION: place, "TMPDIR": place})
        self._waiting: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._num_sent = self._num_handled = self._left_out = 0
        self._has_ended = threading.Event()
        """It is done, or dead."""
        self._is_finishing = False
        self._threads: list[threading.Thread] = []

    def wait_until_ready(self) -> list[str]:
        """Return in words where it will record; raises UsageError if it cannot."""
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
        """Queue a message for the process and return at once. If too many wait, it is left out and counted."""
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
        """Return the notes since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
            return notes

    def ask_to_finish(self) -> None:
        """Let it record the waiting messages and end; returns at once."""
        if not self._is_finishing:
            self._is_finishing = True
            self.send(Kind.FINISH, {})

    def finish(self, deadline_s: float) -> list[str]:
        """Wait for its end until ``deadline_s`` of ``time.monotonic``; return the notes, also about missing rows."""
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
        """End the process and all processes that it has started; idempotent."""
        self._has_ended.set()
        kill(family_of(self._folder.path))
        for thread in self._threads:
            if thread is not threading.current_thread():
                self._offer_end()
                thread.join(_JOIN_S)
        self._threads.clear()
        self._child.close()
        self._folder.remove()

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


CLOSE_TIMEOUT_S: Final = 3.0
"""Seconds that a command waits for its trackers when it has failed or must end at once."""


class Trackers:
    """Owns the processes of the trackers that a run's experiments ask for; a context manager.

    A run without trackers has no process. This process imports nothing of a library.
    """

    def __init__(self, processes: Mapping[TrackerName, TrackerProcess]) -> None:
        """Use :meth:`started`."""
        self._processes = processes
        self._is_finished = False

    @classmethod
    def started(cls, trials: Iterable[Trial], out: Path, note: Callable[[None, str], object]) -> Trackers:
        """Start the trackers of ``trials``, whose run is in ``out``, and note where they record.

        Raises UsageError if a library is missing or does not know an account; then no process is left.
        """
        processes: dict[TrackerName, TrackerProcess] = {}
        trackers = cls(processes)
        try:
            for name, options in asked_for(trials).items():
                if not is_installed(name):
                    raise UsageError(*missing_tracker(name))
                processes[name] = TrackerProcess(name, options, out)
            for name, process in processes.items():
                for place in process.wait_until_ready():
                    note(None, f"tracks with {name}: {place}")
        except BaseException:
            trackers.close()
            raise
        return trackers

    def of(self, trial: Trial, folder: Path, record: RunRecord) -> Sequence[TrialTracker]:
        names = [name for name in trial.experiment.track.to if name in self._processes]
        return [RowSender(self._processes[name], tracked(trial, name, folder, record)) for name in names]

    def drain_notes(self) -> list[str]:
        return [note for process in self._processes.values() for note in process.drain_notes()]

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> list[str]:
        """Wait up to ``timeout_s`` until all trackers have recorded everything; return the notes."""
        self._is_finished = True
        for process in self._processes.values():
            process.ask_to_finish()
        deadline_s = time.monotonic() + timeout_s
        return [note for process in self._processes.values() for note in process.finish(deadline_s)]

    def close(self) -> None:
        """End the processes; without ``finish`` they get ``CLOSE_TIMEOUT_S`` first. Idempotent."""
        try:
            if not self._is_finished:
                self.finish(CLOSE_TIMEOUT_S)
        finally:
            for process in self._processes.values():
                process.close()
            self._processes = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RowSender:
    """Sends the events of one trial to a tracker's process; a trial without a result and an error is not shown."""

    def __init__(self, process: TrackerProcess, trial: TrackedTrial) -> None:
        self._process, self._trial = process, trial
        self._has_begun = False

    def record(self, row: Mapping[str, Any]) -> None:
        self._begin()
        sent = TrackedRow(self._trial.name, row["timesteps_total"], row["timestamp"], dict(scalars(row)))
        self._process.send(Kind.ROW, asdict(sent))

    def end(self, status: Status, score: float | None) -> None:
        if status is Status.ERROR:
            self._begin()
        if self._has_begun:
            self._process.send(Kind.END, {"trial": self._trial.name, "status": status, "score": score})

    def close(self) -> None:
        """Do nothing: the trial's run stays open in the process, as the trial may continue."""

    def _begin(self) -> None:
        if not self._has_begun:
            self._process.send(Kind.BEGIN, asdict(self._trial))
            self._has_begun = True


def asked_for(trials: Iterable[Trial]) -> dict[TrackerName, list[dict[str, Any]]]:
    """Return the trackers of ``trials``, each with the different options that their experiments give it."""
    found: dict[TrackerName, list[dict[str, Any]]] = {}
    for trial in trials:
        for name in trial.experiment.track.to:
            options = options_of(trial, name)
            if options not in found.setdefault(name, []):
                found[name].append(options)
    return found


def options_of(trial: Trial, name: TrackerName) -> dict[str, Any]:
    """Return the options of a trial's experiment under ``track.NAME``."""
    group = {"wandb": trial.experiment.track.wandb, "mlflow": trial.experiment.track.mlflow}[name]
    return group.model_dump(mode="json")


def tracked(trial: Trial, name: TrackerName, folder: Path, record: RunRecord) -> TrackedTrial:
    """Return a trial as the tracker ``name`` gets it."""
    stop: dict[str, Any] = {"stop": dict(trial.experiment.stop)}
    return TrackedTrial(
        name=trial.name,
        run=record.name,
        agent=trial.experiment.run,
        env=trial.experiment.env,
        folder=str(folder.absolute()),
        run_folder=str(folder.absolute().parent),
        config=plain(trial_parameters(trial) | stop),
        varied=plain(masked(trial.varied)),
        options=options_of(trial, name),
        versions=record.versions,
        git_commit=record.git_commit,
    )
