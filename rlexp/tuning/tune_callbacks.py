"""Tune's callbacks: pass what Tune reports to the trial source, recorders, run directory and display."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.keys.trial import Trial
from rlexp.display import Display
from rlexp.metrics.timers import RunningClock
from rlexp.runs.files import ERROR_FILE
from rlexp.runs.phase_file import TRAINING, PhaseWatch
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_lock import OpenFolder
from rlexp.runs.run_record import RecordedError, Status
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import Decision, TrialSource
from rlexp.tuning.assignment import ASSIGNMENT, Assignment
from rlexp.tuning.keeper_actor import keeper_error
from rlexp.tuning.stop_request import StopRequest

LOST_AFTER_S = 1.0
"""How long a trial's directory must be missing before the trial is ended."""
_FOLDER_LOST = "its directory was deleted or moved while it ran"


class LeftError(BaseException):
    """Ends Tune's loop after ``leave``; not an Exception, so that Tune does not begin to clean up."""


class TrialEvents(tune.Callback):
    """Owns the recorders of the trials that run; identifies them by Tune's config of each.

    Called by Tune in its thread, until ``leave``.
    """

    def __init__(self, source: TrialSource, directory: RunDirectory, display: Display, request: StopRequest) -> None:
        self.request = request
        self._without_result: set[str] = set()
        """Names of the trials whose process trains, but has not reported yet."""
        self.training: set[str] = set()
        """Names of the trials whose process trains and has reported."""
        self.decisions: dict[str, Decision] = {}
        """The last one about each trial, for Tune to carry out."""
        self._source = source
        self._directory = directory
        self._display = display
        self._recorders: dict[str, TrialRecorder] = {}
        self._started: dict[str, Trial] = {}
        self._given: set[str] = set()
        """Names of the trials that Tune has and no process has begun, since they were given to Tune or were paused."""
        self._paused: set[str] = set()
        self._lost: list[Trial] = []
        """Those of them whose process died before it began them: they are given to Tune again."""
        self._lost_once: set[str] = set()
        self._stopped: set[str] = set()
        self._failures: dict[str, RecordedError] = {}
        self._reasons: dict[str, str] = {}
        """Why trials reached their end."""
        self._phases = PhaseWatch()
        self._clock = RunningClock()
        self._heard_s: dict[str, float] = {}
        self._folders: dict[str, OpenFolder] = {}
        self._missed_s: dict[str, float] = {}
        self._is_left = False

    def leave(self) -> None:
        """Let the next call from Tune's thread raise LeftError: the main thread records the end of the run."""
        self._is_left = True

    @property
    def can_save(self) -> bool:
        """Whether any trial would save a checkpoint if it were asked to stop now."""
        return bool(self.training or self._without_result)

    @property
    def waits_for_start(self) -> bool:
        """Whether there are trials that a process must begin or continue."""
        return bool(self._given or self._paused)

    def on_given(self, trial: Trial) -> None:
        """Record that Tune is to start or continue a trial."""
        self._given.add(trial.name)

    def take_lost(self) -> Trial | None:
        """Return a trial that Tune was given and could not start, if there is one."""
        return self._lost.pop(0) if self._lost else None

    def check_not_left(self) -> None:
        """Raise LeftError after ``leave``."""
        if self._is_left:
            raise LeftError

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune pickles its callbacks with its state, which is never restored: leave an empty one."""
        return (tune.Callback, ())

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self.check_not_left()
        alive = [trial for trial in trials if trial.status in (TuneTrial.PENDING, TuneTrial.RUNNING)]
        if self._phases.is_due():
            self._show_phases(alive)
        for trial in alive:
            self._kill_when_folder_is_lost(trial)
            self._kill_when_hung(trial)
        self._directory.write_when_due()
        for text in [*self._source.drain_notes(), *self._directory.copies.drain_notes()]:
            self._display.on_note(None, text)
        self._display.tick()

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        for names in (self._given, self._paused, self.training, self._without_result):
            names.discard(ours.name)
        if ours.name not in self._folders:
            self._folders[ours.name] = OpenFolder(self._directory.trial_directory(ours))
        trial.max_failures = ours.experiment.max_failures
        if self._started.get(ours.name, ours) != ours:  # its keys have changed
            self._recorders.pop(ours.name).close()
        self._started[ours.name] = ours
        self._heard_s.pop(ours.name, None)
        self._phases.forget(self._directory.trial_directory(ours))
        self._failures.pop(ours.name, None)
        self._recorder(ours)
        self._source.on_start(ours)
        self._directory.trial_status(ours, Status.RUNNING)
        self._display.on_trial_start(ours)

    def on_result(self, result: Mapping[str, Any]) -> Decision:
        """Record a result of a trial that runs; return what becomes of the trial, which is decided here only."""
        self.check_not_left()
        row = result["row"]
        ours = self._started[row["trial_name"]]
        self._heard_s[ours.name] = self._clock()
        self._without_result.discard(ours.name)
        decision = self._source.on_result(ours, row, Path(result["checkpoint"]) if result["milestone"] else None)
        self.decisions[ours.name] = decision
        if decision.problem is not None:
            self._failures[ours.name] = RecordedError(decision.problem)
        if decision.verdict in (Verdict.PAUSE, Verdict.EXPLOIT):
            self.training.discard(ours.name)
            self._paused.add(ours.name)
        else:
            self.training.add(ours.name)
        self._record(ours, result)
        self._display.on_result(ours, row)
        return decision

    def _record(self, ours: Trial, result: Mapping[str, Any]) -> None:
        row = result["row"]
        redone = self._directory.record.trial(ours.name).iterations - row["training_iteration"] + 1
        if redone > 0 and self._source.milestones is None:
            self._display.on_note(ours, f"repeats {redone} {'iteration' if redone == 1 else 'iterations'} again")
        resumed = result["resumed_row"]
        if resumed is not None and resumed["trial_name"] == ours.name:  # not that of the trial that it copied
            self._recorder(ours).record_missing(resumed)
        self._recorder(ours).record(row)
        self._directory.trial_result(ours, row)
        if result["checkpoint"] is not None:
            self._directory.trial_checkpoint(ours, Path(result["checkpoint"]), row["episode_reward_mean"])
        if result["stopped"]:
            self._stopped.add(ours.name)
        elif result["reason"] is not None:
            self._reasons[ours.name] = result["reason"]
        for text in result["events"]:
            self._display.on_note(ours, text)

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        finished = ours.name in self.training and ours.name not in self._stopped
        self._end(ours, finished, self._failures.get(ours.name))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        if ours.name in self._given and ours.name not in self._lost_once:
            self._lost_once.add(ours.name)
            self._lost.append(ours)
        else:
            self._end(ours, False, self._failures.get(ours.name) or keeper_error(trial) or self._error_of(ours))

    def conclude(self) -> Status:
        """Mark the trials that never ran or never ended; return how the run as a whole ended."""
        for record in self._directory.record.trials:
            if record.status in (Status.PENDING, Status.RUNNING):
                record.status = Status.STOPPED
                if record.name in self._started:
                    self._end(self._started[record.name], False, None)
        statuses = {record.status for record in self._directory.record.trials}
        for worst in (Status.ERROR, Status.STOPPED):
            if worst in statuses:
                return worst
        return Status.TERMINATED

    def close(self) -> None:
        """Close every recorder and folder; idempotent."""
        for recorder in self._recorders.values():
            recorder.close()
        for folder in self._folders.values():
            folder.close()

    def _show_phases(self, trials: list[TuneTrial]) -> None:
        for ours in map(our_trial, trials):
            phase = self._phases.news(self._directory.trial_directory(ours))
            if phase is None:
                continue
            if phase == TRAINING:
                self._without_result.add(ours.name)
                self._heard_s[ours.name] = self._clock()
            self._display.on_phase(ours, phase)

    def _end(self, trial: Trial, finished: bool, error: RecordedError | None) -> None:
        for names in (self.training, self._without_result, self._given, self._paused):
            names.discard(trial.name)
        ending = self._source.on_end(trial, finished, error)
        recorder = self._recorders.pop(trial.name, None)
        if recorder is not None:
            recorder.end(ending.status is not Status.ERROR, ending.score)
            recorder.close()
        folder = self._folders.pop(trial.name, None)
        if folder is not None:
            folder.close()
        reason = ending.message or self._reasons.pop(trial.name, None)
        self._directory.trial_status(trial, ending.status, error, reason)
        self._display.on_trial_end(trial, ending.status, error.summary if error else reason)

    def _recorder(self, trial: Trial) -> TrialRecorder:
        if trial.name not in self._recorders:
            self._recorders[trial.name] = TrialRecorder(
                self._directory.trial_directory(trial),
                self._source.hyperparameters(trial),
                self._source.hparams_metrics,
                trial.experiment.config.AGENT_COLUMNS,
            )
        return self._recorders[trial.name]

    def _error_of(self, trial: Trial) -> RecordedError:
        if trial.name in self._folders and not self._folders[trial.name].is_in_place:
            return RecordedError(_FOLDER_LOST)
        path = self._directory.trial_directory(trial) / ERROR_FILE
        if not path.exists():
            return RecordedError("the trial's process died (killed, or out of memory)")
        summary, _, _ = path.read_text(encoding="utf-8").partition("\n")
        return RecordedError(summary, str(path.relative_to(self._directory.path)))

    def _kill_when_hung(self, trial: TuneTrial) -> None:
        """Kill the process of a trial that has reported nothing for too long; Tune then finds that it has died.

        Only a kill helps: a process that hangs in an env's ``step`` answers nothing.
        """
        now, timeout_s = self._clock(), self._source.hang_timeout_s
        if timeout_s is not None and now - self._heard_s.get(our_trial(trial).name, now) >= timeout_s:
            what = "its env hangs in reset or step, or search.hang_timeout_s is too short for an iteration"
            self._kill(trial, RecordedError(f"no result for {timeout_s:g} s: {what}"))

    def _kill_when_folder_is_lost(self, trial: TuneTrial) -> None:
        """Kill the process of a trial whose directory was deleted or moved: it cannot write.

        Not at the first look: if the whole run is being deleted, that is reported instead.
        """
        name = our_trial(trial).name
        if name not in self._folders or self._folders[name].is_in_place:
            return
        missed_s = self._missed_s.setdefault(name, time.monotonic())
        if time.monotonic() - missed_s >= LOST_AFTER_S:
            trial.max_failures = 0
            self._kill(trial, RecordedError(_FOLDER_LOST))

    def _kill(self, trial: TuneTrial, error: RecordedError) -> None:
        """Kill the process of a trial that runs, once; ``error`` is reported as its error."""
        actor, name = trial.temporary_state.ray_actor, our_trial(trial).name
        if trial.status == TuneTrial.RUNNING and actor is not None and name not in self._failures:
            self._failures[name] = error
            ray.kill(actor, no_restart=True)


def our_trial(trial: TuneTrial) -> Trial:
    """Return rlexp's trial for one of Tune's."""
    assignment: Assignment = trial.config[ASSIGNMENT]
    return assignment.trial
