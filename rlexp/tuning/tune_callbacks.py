"""Tune's callbacks: pass what Tune reports to the trial source, recorders, run directory and display."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.keys.trial import Trial
from rlexp.processes.signals import StopRequest
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.standings import Display
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import Decision, TrialSource
from rlexp.tuning.assignment import keeper_error
from rlexp.tuning.cluster_trials import ClusterTrials
from rlexp.tuning.trial_watch import TrialWatch, kill_process, our_trial


class LeftError(BaseException):
    """Ends Tune's loop after ``leave``; not an Exception, so that Tune does not begin to clean up."""


class TrialEvents(tune.Callback):
    """Owns the recorders of the running trials, which Tune's config of each identifies.

    Called by Tune in its thread, until ``leave``.
    """

    def __init__(
        self,
        source: TrialSource,
        directory: RunDirectory,
        display: Display,
        request: StopRequest,
        cluster: ClusterTrials | None = None,
    ) -> None:
        """Initialise; ``cluster`` is None for our own Ray on one machine."""
        self.request = request
        self.training: set[str] = set()
        """Names of the trials whose process trains and has reported."""
        self.decisions: dict[str, Decision] = {}
        """The last decision about each trial, for Tune to carry out."""
        self._source = source
        self._directory = directory
        self._display = display
        self._recorders: dict[str, TrialRecorder] = {}
        self._started: dict[str, Trial] = {}
        self._given: set[str] = set()
        """Names of trials that Tune has and no process has begun since they were given to Tune or paused."""
        self._paused: set[str] = set()
        self._lost: list[Trial] = []
        """Names of those whose process died before it began them; they are given to Tune again."""
        self._lost_once: set[str] = set()
        self._stopped: set[str] = set()
        self._leaving: set[str] = set()
        """Names of trials whose process has saved a checkpoint and is to end, to start on another node."""
        self._failed: set[str] = set()
        """Names of trials that have failed too often and that Tune would start again."""
        self._cluster = cluster
        self._watch = TrialWatch(directory, display, lambda: source.hang_timeout_s)
        self._reasons: dict[str, str] = {}
        """Why trials reached their end."""
        self._is_left = False

    def leave(self) -> None:
        """Let the next call from Tune's thread raise LeftError; the main thread then records the end of the run."""
        self._is_left = True

    @property
    def can_save(self) -> bool:
        """Whether any trial would save a checkpoint if asked to stop now."""
        return bool(self.training or self._watch.without_result)

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
        """Leave an empty one, as Tune pickles its callbacks with its state, which is never restored."""
        return (tune.Callback, ())

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self.check_not_left()
        alive = [trial for trial in trials if trial.status in (TuneTrial.PENDING, TuneTrial.RUNNING)]
        self._watch.look(alive)
        if self._cluster is not None:
            self._cluster.look(alive)
        self._directory.write_when_due()
        directory = self._directory
        for text in [*self._source.drain_notes(), *directory.copies.drain_notes(), *directory.trackers.drain_notes()]:
            self._display.on_note(None, text)
        self._display.tick()

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        for names in (self._given, self._paused, self.training, self._leaving):
            names.discard(ours.name)
        trial.max_failures = ours.experiment.max_failures
        self._watch.begin(ours)
        if self._cluster is not None:
            self._cluster.begin(trial)
        if self._started.get(ours.name, ours) != ours:  # its keys have changed
            self._recorders.pop(ours.name).close()
        self._started[ours.name] = ours
        self._recorder(ours)
        self._source.on_start(ours)
        self._directory.trial_status(ours, Status.RUNNING)
        self._display.on_trial_start(ours)

    def on_result(self, result: Mapping[str, Any]) -> Decision:
        """Record a result of a running trial; return the decision about the trial, which is made only here."""
        self.check_not_left()
        row = result["row"]
        ours = self._started[row["trial_name"]]
        self._watch.heard(ours)
        decision = self._source.on_result(ours, row, Path(result["checkpoint"]) if result["milestone"] else None)
        self.decisions[ours.name] = decision
        if decision.problem is not None:
            self._watch.failures[ours.name] = RecordedError(decision.problem)
        if decision.verdict in (Verdict.PAUSE, Verdict.EXPLOIT):
            self.training.discard(ours.name)
            self._paused.add(ours.name)
        else:
            self.training.add(ours.name)
        self._record(ours, result)
        if self._cluster is not None and self._cluster.leaves(ours, result["moves"]):
            self._leaving.add(ours.name)
        self._display.on_result(ours, row)
        return decision

    def _record(self, ours: Trial, result: Mapping[str, Any]) -> None:
        row = result["row"]
        redone = self._directory.record.trial(ours.name).iterations - row["training_iteration"] + 1
        if redone > 0 and self._source.milestones is None:
            self._display.on_note(ours, f"repeats {redone} {'iteration' if redone == 1 else 'iterations'} again")
        resumed = result["resumed_row"]
        if resumed is not None and resumed["trial_name"] == ours.name:  # not the row of the trial that it copied
            self._recorder(ours).record_missing(resumed)
        self._recorder(ours).record(row)
        self._directory.trial_result(ours, row)
        if result["checkpoint"] is not None:
            self._directory.trial_checkpoint(ours, Path(result["checkpoint"]), row)
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
        self._end(ours, finished, self._watch.failures.get(ours.name))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        if ours.name in self._given and ours.name not in self._lost_once:
            self._lost_once.add(ours.name)
            self._lost.append(ours)
        else:
            self._end(ours, False, self._error_of(trial))

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.check_not_left()
        ours = our_trial(trial)
        self._watch.lose_process(ours)
        self.training.discard(ours.name)  # without a process it cannot save
        if self._cluster is not None and not self._cluster.may_start_again(ours):
            self._watch.failures[ours.name] = self._error_of(trial)
            self._failed.add(ours.name)

    def leave_node(self, trial: TuneTrial) -> None:
        """End the process of a trial that has saved a checkpoint to start on another node; Tune starts it again."""
        if our_trial(trial).name in self._leaving:
            kill_process(trial)

    def to_end(self, pending: Sequence[TuneTrial]) -> list[TuneTrial]:
        """Return the trials without a process that must end instead of starting."""
        failed = [trial for trial in pending if our_trial(trial).name in self._failed]
        if self._cluster is None:
            return failed
        late = [trial for trial in self._cluster.over_time(pending, time.time()) if trial not in failed]
        for ours in map(our_trial, late):
            if self._directory.record.trial(ours.name).iterations:
                self._reasons[ours.name] = "its time_budget_s is over"
                self.training.add(ours.name)  # it has reached its end
            else:
                self._watch.failures[ours.name] = RecordedError(
                    "its time_budget_s was over before there was room for it"
                )
        return [*failed, *late]

    def conclude(self) -> Status:
        """Mark the trials that never ran or never ended; return how the run as a whole ended."""
        for record in self._directory.record.trials:
            if record.status in (Status.PENDING, Status.RUNNING):
                record.status = Status.STOPPED
                if record.name in self._started:
                    self._end(self._started[record.name], False, None)
        statuses = {record.status for record in self._directory.record.trials}
        return next((worst for worst in (Status.ERROR, Status.STOPPED) if worst in statuses), Status.TERMINATED)

    def close(self) -> None:
        """Close every recorder and folder; idempotent."""
        for recorder in self._recorders.values():
            recorder.close()
        self._watch.close()
        if self._cluster is not None:
            self._cluster.close()

    def _end(self, trial: Trial, finished: bool, error: RecordedError | None) -> None:
        for names in (self.training, self._given, self._paused, self._leaving, self._failed):
            names.discard(trial.name)
        ending = self._source.on_end(trial, finished, error)
        recorder = self._recorders.pop(trial.name, None)
        if recorder is not None:
            recorder.end(ending.status, ending.score)
            recorder.close()
        self._watch.end(trial)
        if self._cluster is not None:
            self._cluster.end(trial)
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
                self._directory.trackers_of(trial),
            )
        return self._recorders[trial.name]

    def _error_of(self, trial: TuneTrial) -> RecordedError:
        ours = our_trial(trial)
        where = "" if self._cluster is None else self._cluster.where(ours.name)
        return self._watch.failures.get(ours.name) or keeper_error(trial) or self._watch.error_of(ours, where)
