"""Trackers: the processes of all trackers of a run, and what the runner hands each trial's rows to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from rlexp.cluster.room.machine import is_installed, missing_tracker
from rlexp.config.keys.tracking import TrackerName
from rlexp.config.keys.trial import Trial
from rlexp.errors import UsageError
from rlexp.files import plain
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.recorders import TrialTracker
from rlexp.runs.rows import scalars
from rlexp.runs.run_directory import trial_parameters
from rlexp.text import masked
from rlexp.trackers.messages import Kind, TrackedRow, TrackedTrial
from rlexp.trackers.tracker_process import FINISH_TIMEOUT_S, TrackerProcess

CLOSE_TIMEOUT_S: Final = 3.0
"""How long a command that has failed, or is to end at once, waits for its trackers."""


class Trackers:
    """Owns the processes of the trackers that a run's experiments ask for; a context manager.

    A run without any has none. Nothing of a library is imported into this process.
    """

    def __init__(self, processes: Mapping[TrackerName, TrackerProcess]) -> None:
        """Use :meth:`started`."""
        self._processes = processes
        self._is_finished = False

    @classmethod
    def started(cls, trials: Iterable[Trial], out: Path, note: Callable[[None, str], object]) -> Trackers:
        """Start the trackers of ``trials``, whose run lies in ``out``, and say where they record.

        Raises UsageError, with no process left, where a library is missing or does not know an account.
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
        """Return what hands the rows of ``trial`` to the processes; see ``RunTrackers``."""
        names = [name for name in trial.experiment.track.to if name in self._processes]
        return [RowSender(self._processes[name], tracked(trial, name, folder, record)) for name in names]

    def drain_notes(self) -> list[str]:
        """Return what there is to say since the last call."""
        return [note for process in self._processes.values() for note in process.drain_notes()]

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> list[str]:
        """Wait until everything is recorded, all trackers at once, for ``timeout_s`` at most; return the notes."""
        self._is_finished = True
        for process in self._processes.values():
            process.ask_to_finish()
        deadline_s = time.monotonic() + timeout_s
        return [note for process in self._processes.values() for note in process.finish(deadline_s)]

    def close(self) -> None:
        """End the processes; without ``finish`` they get a moment first. Idempotent."""
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
    """Hands what happens to one trial to a tracker's process; a trial without a result and an error is not shown."""

    def __init__(self, process: TrackerProcess, trial: TrackedTrial) -> None:
        self._process, self._trial = process, trial
        self._has_begun = False

    def record(self, row: Mapping[str, Any]) -> None:
        """Hand the numbers of ``row`` on."""
        self._begin()
        sent = TrackedRow(self._trial.name, row["timesteps_total"], row["timestamp"], dict(scalars(row)))
        self._process.send(Kind.ROW, asdict(sent))

    def end(self, status: Status, score: float | None) -> None:
        """Hand on how the trial ended."""
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
    """Return the trackers of ``trials``, each with the different options that their experiments have for it."""
    found: dict[TrackerName, list[dict[str, Any]]] = {}
    for trial in trials:
        for name in trial.experiment.track.to:
            options = options_of(trial, name)
            if options not in found.setdefault(name, []):
                found[name].append(options)
    return found


def options_of(trial: Trial, name: TrackerName) -> dict[str, Any]:
    """Return what the experiment of a trial has under ``track.NAME``."""
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
