"""Watches the processes of trials between their results: phases, hung processes, lost directories, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import ray
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.keys.trial import Trial
from rlexp.files import read_regular
from rlexp.metrics import RunningClock
from rlexp.processes.locks import OpenFolder
from rlexp.runs.record import RecordedError
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import ERROR_FILE, TRAINING, PhaseWatch, is_progress
from rlexp.search.display import Display
from rlexp.tuning.assignment import assigned

LOST_AFTER_S = 1.0
"""Seconds for which a trial's directory must be missing before the trial is ended."""
_FOLDER_LOST = "its directory was deleted or moved while it ran"


class TrialWatch:
    """Owns the known facts of each trial's process, and the folders of the trials that have not ended."""

    def __init__(self, directory: RunDirectory, display: Display, hang_timeout_s: Callable[[], float | None]) -> None:
        self.without_result: set[str] = set()
        """Names of the trials whose process trains, but has not reported yet."""
        self.failures: dict[str, RecordedError] = {}
        """Why trials fail, if that is known without their error files."""
        self._directory = directory
        self._display = display
        self._hang_timeout_s = hang_timeout_s
        self._phases = PhaseWatch()
        self._clock = RunningClock()
        self._heard_s: dict[str, float] = {}
        self._folders: dict[str, OpenFolder] = {}
        self._missed_s: dict[str, float] = {}
        self._error_times_ns: dict[str, int] = {}
        """Time of the error file that a trial had at its last start."""

    def begin(self, trial: Trial) -> None:
        """Watch a trial whose process is about to begin it."""
        if trial.name not in self._folders:
            self._folders[trial.name] = OpenFolder(self._directory.trial_directory(trial))
        self._phases.forget(self._directory.trial_directory(trial))
        self.failures.pop(trial.name, None)
        self._error_times_ns[trial.name] = self._error_time_ns(trial)
        self.lose_process(trial)

    def heard(self, trial: Trial) -> None:
        """Record that a trial has reported a result."""
        self._heard_s[trial.name] = self._clock()
        self.without_result.discard(trial.name)

    def lose_process(self, trial: Trial) -> None:
        """Record that a trial has no process that trains it."""
        self._heard_s.pop(trial.name, None)
        self.without_result.discard(trial.name)

    def end(self, trial: Trial) -> None:
        """Stop watching a trial."""
        self.lose_process(trial)
        folder = self._folders.pop(trial.name, None)
        if folder is not None:
            folder.close()

    def close(self) -> None:
        """Close every folder; idempotent."""
        for folder in self._folders.values():
            folder.close()

    def look(self, alive: Iterable[TuneTrial]) -> None:
        """Show new phases, and kill processes that hang or have lost their directory."""
        trials = list(alive)
        if self._phases.is_due():
            self._show_phases(trials)
        for trial in trials:
            self._kill_when_folder_is_lost(trial)
            self._kill_when_hung(trial)

    def error_of(self, trial: Trial, where: str = "") -> RecordedError:
        """Return why a trial's process has failed or died; a death without a reason is completed by ``where`` it was.

        An error file of an earlier process of the trial is not read.
        """
        if trial.name in self._folders and not self._folders[trial.name].is_in_place:
            return RecordedError(_FOLDER_LOST)
        if self._error_time_ns(trial) == self._error_times_ns.get(trial.name, 0):
            return RecordedError(f"the trial's process died{where} (killed, out of memory, or ended by its env)")
        path = self._directory.trial_directory(trial) / ERROR_FILE
        summary, _, _ = read_regular(path).decode(errors="replace").partition("\n")
        return RecordedError(summary, str(path.relative_to(self._directory.path)))

    def _error_time_ns(self, trial: Trial) -> int:
        try:
            return (self._directory.trial_directory(trial) / ERROR_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def _show_phases(self, trials: Iterable[TuneTrial]) -> None:
        for ours in map(our_trial, trials):
            phase = self._phases.news(self._directory.trial_directory(ours))
            if phase is None:
                continue
            if phase == TRAINING or (is_progress(phase) and ours.name not in self._heard_s):
                self.without_result.add(ours.name)
                self._heard_s[ours.name] = self._clock()
            self._display.on_phase(ours, phase)

    def _kill_when_hung(self, trial: TuneTrial) -> None:
        """Kill the process of a trial that has reported nothing for too long; Tune then finds that it has died.

        Only a kill helps, as a process that hangs in an env's ``step`` does not answer.
        """
        now, timeout_s = self._clock(), self._hang_timeout_s()
        if timeout_s is not None and now - self._heard_s.get(our_trial(trial).name, now) >= timeout_s:
            what = "its env hangs in reset or step, or search.hang_timeout_s is too short for an iteration"
            self._kill(trial, RecordedError(f"no result for {timeout_s:g} s: {what}"))

    def _kill_when_folder_is_lost(self, trial: TuneTrial) -> None:
        """Kill the process of a trial whose directory was deleted or moved, as it cannot write.

        Not at the first check: if the whole run is being deleted, that is reported instead.
        """
        name = our_trial(trial).name
        if name not in self._folders or self._folders[name].is_in_place:
            return
        missed_s = self._missed_s.setdefault(name, time.monotonic())
        if time.monotonic() - missed_s >= LOST_AFTER_S:
            trial.max_failures = 0
            self._kill(trial, RecordedError(_FOLDER_LOST))

    def _kill(self, trial: TuneTrial, error: RecordedError) -> None:
        """Kill the process of a running trial, once; ``error`` is reported as its error."""
        name = our_trial(trial).name
        if name not in self.failures and kill_process(trial):
            self.failures[name] = error


def kill_process(trial: TuneTrial) -> bool:
    """Kill the process of a running trial; return whether there was one. Tune then finds that it has died."""
    actor = trial.temporary_state.ray_actor
    if trial.status != TuneTrial.RUNNING or actor is None:
        return False
    ray.kill(actor, no_restart=True)
    return True


def our_trial(trial: TuneTrial) -> Trial:
    """Return rlexp's trial for one of Tune's."""
    return assigned(trial).trial
