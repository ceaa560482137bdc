"""The directory of a run: created or refused before anything runs, locked while it runs, readable at any moment."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.errors import RlexpError
from rlexp.files import replace_json, replace_text, sync
from rlexp.processes.locks import RunLock
from rlexp.runs.checkpoints import iteration_of, list_checkpoints
from rlexp.runs.directories import derived_name, make_run_directory, remove_remains, remove_unfinished
from rlexp.runs.record import (
    PARAMETERS_FILE,
    RESOLVED_FILE,
    RecordedError,
    RunRecord,
    Status,
    TrialRecord,
    git_commit,
    now,
    read_run_record,
    versions,
)
from rlexp.runs.recorders import NoTrackers, RunTrackers, TrialTracker
from rlexp.runs.rows import ITERATION, earlier_rewards, is_row, last_row, rows_at
from rlexp.runs.storage import CheckpointCopies, folder_of
from rlexp.text import has_secrets, masked, masked_command

_OWNER_ONLY: Final = 0o700
RESULT_DELAY_S: Final = 5.0
"""Seconds by which ``run.json`` may lag for results, which arrive up to several times a second."""
STATUS_DELAY_S: Final = 1.0
"""Seconds by which ``run.json`` may lag for a trial's begin, end or newest checkpoint."""
_WRITING_SHARE: Final = 0.05
"""Largest share of the time for writing ``run.json``: with thousands of trials it is written less often."""


class LostDirectoryError(RlexpError):
    """Raised if the directory of a run was deleted, moved or replaced while the run used it."""


class RunDirectory:
    """Owns ``OUT/NAME``: its lock, ``run.json`` and the directories of its trials.

    The command that runs or resumes an experiment has one, as a context manager, for as long as it lives.
    """

    def __init__(
        self, path: Path, lock: RunLock, record: RunRecord, is_new: bool, modules: UserModules = NO_MODULES
    ) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self.path = path
        self.is_new = is_new
        """Whether this command created it; if not, it contains somebody's work."""
        self.record = record
        self.modules = modules
        """Modules that trials may import; the modules in ``run.json`` may be a stranger's choice."""
        self.copies = CheckpointCopies(folder_of(record))
        """The copies of checkpoints of trials with a storage."""
        self.trackers: RunTrackers = NoTrackers()
        """The trackers of rows of trials with ``track``; started and closed by the command."""
        self._lock = lock
        self._written_s = -math.inf
        self._due_s = math.inf
        self._writing_takes_s = 0.0

    @classmethod
    def create(
        cls, out: Path, usual_name: str, name: str | None, command: Sequence[str], *, overwrite: bool
    ) -> RunDirectory:
        """Make and lock ``out/name``; without a name ``out/usual_name``, with ``-2``, ``-3`` if it is taken.

        ``overwrite`` removes a finished run that is there. Raises UsageError, leaving nothing, if the name is not
        allowed or taken, or the place cannot be written. Raises ResumeError if the run to be overwritten is still
        running.
        """
        record = RunRecord(
            name="",
            command=masked_command(command),
            versions=versions(),
            git_commit=git_commit(Path.cwd()),
            host=socket.gethostname(),
            cpus=os.cpu_count() or 1,
            started=now(),
        )
        # Last: git may take a second, in which a signal would leave the directory.
        path, lock = make_run_directory(out, usual_name, name, overwrite=overwrite)
        record.name = path.name
        return cls(path, lock, record, is_new=True)

    @classmethod
    def open(cls, path: Path, modules: UserModules = NO_MODULES) -> RunDirectory:
        """Lock the run at ``path`` to resume it with the allowed ``modules``.

        Raises ResumeError if it is foreign, damaged or in use.
        """
        record = read_run_record(path)
        directory = cls(path, RunLock(path), record, is_new=False, modules=modules)
        remove_unfinished(path)
        remove_remains(path.absolute().parent)
        for trial in record.trials:
            if trial.status in (Status.PENDING, Status.RUNNING):  # it was killed
                _read_missed(path / trial.directory, trial)
        return directory

    def keep_private(self) -> None:
        """Let nobody else read a run with secrets; a resume needs them in experiment.yaml and resolved.yaml."""
        self.path.chmod(_OWNER_ONLY)

    def write_experiments(self, texts: Sequence[str], resolved: str) -> None:
        """Store the experiment files unchanged, and ``resolved.yaml``.

        A second and third file become ``experiment-2.yaml`` and ``experiment-3.yaml``: if joined, two files with
        experiments of the same name could not be run again.
        """
        for number, text in enumerate(texts, start=1):
            suffix = "" if number == 1 else f"-{number}"
            replace_text(self.path / f"experiment{suffix}.yaml", text)
        self.write_resolved(resolved)

    def write_resolved(self, resolved: str) -> None:
        """Store the experiments that a resumed run uses."""
        replace_text(self.path / RESOLVED_FILE, resolved)

    def start(self, trials: Sequence[Trial], modules: UserModules = NO_MODULES) -> None:
        """Make the trials' directories and write the first ``run.json``; ``modules`` are their envs' modules."""
        self.modules = modules
        self.record.imports, self.record.module_folders = list(modules.imports), list(modules.folders)
        for trial in trials:
            self._make(trial)
        self.write()

    def add(self, trial: Trial) -> None:
        """Make the directory of a trial that a sweep suggested while others ran."""
        self._make(trial)
        sync(self.path)
        self._write_within(STATUS_DELAY_S)

    def recover(self, trial: Trial) -> None:
        """Add a trial that ``run.json`` lacks, as the run was killed soon after the trial began."""
        self._make(trial)
        _read_missed(self.trial_directory(trial), self.record.trial(trial.name))

    def change(self, trial: Trial) -> None:
        """Record that a trial continues with other keys."""
        replace_json(self.trial_directory(trial) / PARAMETERS_FILE, trial_parameters(trial))
        self.record.trial(trial.name).varied = masked(trial.varied)
        self._write_within(STATUS_DELAY_S)

    def _make(self, trial: Trial) -> None:
        storage = trial.experiment.storage
        if has_secrets([trial.experiment.config.model_dump(mode="json"), storage]):
            self.keep_private()
        directory = self._make_directory(trial)
        seed = trial.experiment.config.seed
        varied, env = masked(trial.varied), trial.experiment.env
        self.record.add(TrialRecord(trial.name, directory.name, seed, varied, env=env, storage=masked(storage)))

    def _make_directory(self, trial: Trial) -> Path:
        directory = self.trial_directory(trial)
        directory.mkdir(exist_ok=True)
        replace_json(directory / PARAMETERS_FILE, trial_parameters(trial))
        return directory

    def restart(self, trials: Sequence[Trial]) -> None:
        """Record that ``trials`` of this run are resumed."""
        self.record.status, self.record.ended = Status.RUNNING, None
        for trial in trials:
            record = self.record.trial(trial.name)
            record.status, record.error, record.reason = Status.PENDING, None, None
            if not self.trial_directory(trial).exists():  # somebody deleted it, so the trial starts anew
                self._make_directory(trial)
        self.write()

    def trial_directory(self, trial: Trial) -> Path:
        """Return the directory of the trial's files."""
        return self.path / derived_name(trial.name)

    def trackers_of(self, trial: Trial) -> Sequence[TrialTracker]:
        return self.trackers.of(trial, self.trial_directory(trial), self.record)

    def trial_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        self.record.trial(trial.name).add_result(row)
        self._write_within(RESULT_DELAY_S)

    def trial_checkpoint(self, trial: Trial, checkpoint: Path, row: Mapping[str, Any]) -> None:
        """Record that the trial wrote a checkpoint with ``row``."""
        self.record.trial(trial.name).add_checkpoint(checkpoint, row)
        if trial.experiment.storage is not None:
            self.copies.follow(self.trial_directory(trial), trial.experiment.storage)
        self._write_within(STATUS_DELAY_S)

    def trial_status(
        self, trial: Trial, status: Status, error: RecordedError | None = None, reason: str | None = None
    ) -> None:
        """Record that the trial began, ended or failed, and why."""
        record = self.record.trial(trial.name)
        record.status, record.error, record.reason = status, error, reason
        self._write_within(STATUS_DELAY_S)

    def finish(self, status: Status) -> None:
        """Record that the whole run ended; unfinished trials count as stopped."""
        for trial in self.record.trials:
            if trial.status in (Status.PENDING, Status.RUNNING):
                trial.status = Status.STOPPED
        self.record.status = status
        self.record.ended = now()
        self.write()

    @property
    def is_lost(self) -> bool:
        """Whether it was deleted, moved or replaced, so that nothing may be written at its path."""
        return not self._lock.folder.is_in_place

    def check(self) -> None:
        """Raise LostDirectoryError if it is lost."""
        if self.is_lost:
            place = self._lock.folder.new_place
            what = "was deleted" if place is None else f"was moved to {place}"
            hint = None if place is None else f"rlexp resume {shlex.quote(str(place))} continues from its checkpoints"
            raise LostDirectoryError(f"the run has ended: its directory {self.path} {what} while it ran", hint)

    def write(self) -> None:
        """Write ``run.json``; raises LostDirectoryError if its directory is lost."""
        self.check()
        began_s = time.monotonic()
        self.record.write(self.path)
        self._written_s, self._due_s = time.monotonic(), math.inf
        self._writing_takes_s = self._written_s - began_s

    def write_when_due(self) -> None:
        """Write ``run.json`` if it has lagged as long as it may; called several times a second.

        Data that a kill keeps out of it is in the files of the trials, and in the journal of a sweep.
        """
        if time.monotonic() >= self._due_s:
            self.write()

    def _write_within(self, delay_s: float) -> None:
        """Let ``run.json`` be written ``delay_s`` after the last time, or later if that would take too much time."""
        pause_s = max(delay_s, self._writing_takes_s / _WRITING_SHARE)
        self._due_s = min(self._due_s, self._written_s + pause_s)
        self.write_when_due()

    @property
    def is_empty(self) -> bool:
        """Whether the run is new and has no results."""
        return self.is_new and not any(trial.iterations for trial in self.record.trials)

    def discard(self) -> None:
        """Remove the directory of a run that never began, and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Release the lock; idempotent."""
        self.copies.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is KeyboardInterrupt and self.is_empty:
            self.discard()
        self.close()


def _read_missed(folder: Path, record: TrialRecord) -> None:
    """Record rows and checkpoints of a trial that ``run.json`` lacks after a kill."""
    row = last_row(folder)
    if row is None or not is_row(row):
        return
    missed = [path for path in list_checkpoints(folder) if iteration_of(path) >= record.iterations]
    if row[ITERATION] > record.iterations:
        record.add_result(row)
        record.best_episode_reward_mean = max((reward for _, reward in earlier_rewards(folder)), default=None)
    rows = rows_at(folder, {iteration_of(path) for path in missed})
    for path in reversed(missed):
        record.add_checkpoint(path, rows.get(iteration_of(path), {}))


def trial_parameters(trial: Trial) -> dict[str, Any]:
    """Return the content of ``params.json`` and the HParams tab: agent, env, the config's keys; secrets masked."""
    experiment = trial.experiment
    config: dict[str, Any] = masked(experiment.config.model_dump(mode="json", by_alias=True))
    return {"run": experiment.run, "env": experiment.env, **config}
