"""Search: the trial source of a sweep. It asks the searcher for configurations and the scheduler about results."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Point
from rlexp.errors import ConfigError
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.rows import SCORE_TAG, TAG_PREFIX, flatten
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.population import Exploits
from rlexp.search.ranking import Standing
from rlexp.search.record import JOURNALED, Event, Journal, SearchRecord
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import Judgement, Verdict
from rlexp.search.trial_source import CONTINUE, Decision, Ending, TrialSource

_LOSSES = ("info/learner/loss", "info/learner/total_loss")
"""The losses of agents with a Q-function, and of agents with a policy and a value function."""


class Search(TrialSource):
    """Decides while a sweep runs, by its state; writes each event to the journal before the state records it.

    Called in one thread, by Tune's callbacks; it needs no Ray.
    """

    def __init__(
        self, state: SearchState, directory: RunDirectory, journal: Journal, capacity: int, allow_failures: int
    ) -> None:
        """Run at most ``capacity`` trials at a time; up to ``allow_failures`` may fail without the sweep failing."""
        search = state.sweep.search
        self.standings = state.standings
        if search.time_budget_s is not None:
            self.deadline_s = time.time() + search.time_budget_s - journal.elapsed_s
        self.hang_timeout_s = search.hang_timeout_s
        self.reuses_processes = state.sweep.variants[0].reuse_actors
        self.milestones = state.scheduler.milestones
        self._state = state
        self._sweep = state.sweep
        self._directory = directory
        self._journal = journal
        self._record = SearchRecord(state.sweep, journal.folder)
        self._exploits = Exploits(state, directory, journal)
        self._capacity = capacity
        self._allow_failures = allow_failures
        self.hparams_metrics = (SCORE_TAG, TAG_PREFIX + search.metric)
        self._scores: dict[str, float | None] = {}
        """Scores of trials when they ended, which may change as others end."""

    def next(self) -> Trial | None:
        self._exploits.carry_out_idle()
        self._state.searcher.keep_alive()
        trial = None if self._is_full() or self.is_over_time or self._paused_goes_first() else self._next_waiting()
        if trial is None:
            return None
        self._add(trial)
        self._begin(trial)
        return trial

    @property
    def finished(self) -> bool:
        return self.is_over_time or (self._state.is_exhausted and not self._state.waiting)

    def on_result(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        self._state.searcher.keep_alive()
        row = flatten(row)
        problem = _divergence(row)
        if problem is not None or row["done"]:
            self._report(trial, row, True, None)
            decision = CONTINUE if problem is None else Decision(Verdict.STOP, problem=problem)
        else:
            decision = self._decide(trial, row, checkpoint)
        self._record.write_when_due(self.standings, self._state.summary)
        return decision

    def _decide(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        milestone = None if checkpoint is None else f"{checkpoint.parent.name}/{checkpoint.name}"
        verdict, changed = self._report(trial, row, False, milestone).verdict, None
        if verdict is Verdict.EXPLOIT:
            changed = self._exploits.carry_out(trial)
            if changed is None:
                verdict = Verdict.PAUSE if self._others_wait() else Verdict.CONTINUE
        if verdict in (Verdict.PAUSE, Verdict.EXPLOIT):
            self._state.paused_by_scheduler(trial)
        return Decision(verdict, changed)

    def next_paused(self, paused: Sequence[Trial]) -> Trial | None:
        """Return the paused trial with the fewest env steps, if it has room and no other one goes first.

        Its keys may have changed while it was paused.
        """
        self._exploits.carry_out_idle()
        if self._is_full():
            return None
        is_any_left = not self.is_over_time and self._next_waiting() is not None
        free = [trial for trial in paused if self._may_continue(trial.name, is_any_left)]
        if self.is_over_time or not (self._state.running or is_any_left):
            free = free or list(paused)  # nothing runs for which the scheduler could wait
        trial = min(free, key=lambda each: self.standings.of(each).timesteps_total, default=None)
        if trial is None:
            return None
        trial = self.standings.trial(trial.name)
        self._begin(trial)
        return trial

    def _paused_goes_first(self) -> bool:
        return any(self._may_continue(name, True) for name in self._state.paused)

    def _may_continue(self, name: str, is_any_left: bool) -> bool:
        """Return whether a paused trial may continue, even if others have not begun."""
        judgement = self._state.judge_waiting(name)
        return judgement.verdict is Verdict.CONTINUE and not (is_any_left and judgement.yields)

    def stopped(self, paused: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in paused if self._state.judge_waiting(trial.name).verdict is Verdict.STOP]

    def on_start(self, trial: Trial) -> None:
        self.standings.on_status(trial, Status.RUNNING)

    def drain_notes(self) -> list[str]:
        return self.standings.drain_notes()

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return the searched keys and the seed; with every key, the tab would have a column for each."""
        return {**dict.fromkeys(self._sweep.space.columns), **trial.varied, "seed": trial.experiment.config.seed}

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        why = self._state.pruned.get(trial.name)
        if error is not None:
            status = Status.ERROR
        elif why is not None:
            status = Status.PRUNED
        else:
            status = Status.TERMINATED if finished else Status.STOPPED
        if finished and self.is_over_time and error is None:
            status, why = Status.STOPPED, "search.time_budget_s is over"
        self._journal.write(Event.ENDED, trial=trial.name, status=status, error=asdict(error) if error else None)
        self.standings.elapsed_s = self._journal.elapsed_s
        self._state.ended(trial, status, error)
        self._record.write_when_due(self.standings, self._state.summary)
        self._scores[trial.name] = self.standings.score_of(trial)
        return Ending(status, why, self._scores[trial.name])

    def conclude(self, status: Status) -> Status:
        """Write the sweep's files. It has failed if more trials failed than may, or if none has a score.

        A sweep that was stopped before its end has neither failed nor succeeded.
        """
        self._record.write(self.standings, self._state.summary)
        best = self.standings.best()
        if best is not None and self._sweep.points is None:
            self._record.write_best(best, self.point_of(best), self.standings)
        self._write_changed_scores()
        if not self.is_over_time and not self.is_complete:
            return Status.STOPPED
        failures = len(self.standings.failures()) + len(self.standings.refused)
        if failures > self._allow_failures or self.standings.best() is None:
            return Status.ERROR
        return Status.TERMINATED

    def point_of(self, standing: Standing) -> Point:
        """Return the point of a configuration."""
        return self._state.points[standing.trials[0].trial.name]

    def _write_changed_scores(self) -> None:
        """Write the scores of the ranking for TensorBoard, if they changed and the trial's folder still exists."""
        from rlexp.runs.tensorboard import write_score  # only sweeps have scores, and every run would import it

        for standing in self.standings.ranked():
            for each, score in zip(standing.trials, standing.scores, strict=True):
                folder = self._directory.trial_directory(each.trial)
                if score is not None and score != self._scores.get(each.trial.name) and folder.is_dir():
                    write_score(folder, score, each.timesteps_total)
                    self._scores[each.trial.name] = score

    def is_pruned(self, trial: Trial) -> bool:
        """Return whether it was decided that a trial ends early."""
        return trial.name in self._state.pruned

    @property
    def is_complete(self) -> bool:
        """Whether every configuration was tried, and all trials have ended."""
        return self._state.is_exhausted and not self._state.waiting and not self._state.unfinished()

    def _is_full(self) -> bool:
        return len(self._state.running) >= self._capacity

    def _next_waiting(self) -> Trial | None:
        """Return the next trial that may begin; asks the searcher if none is known."""
        while True:
            for trial in list(self._state.waiting):
                verdict = self._state.judge_waiting(trial.name).verdict
                if verdict is Verdict.CONTINUE:
                    return trial
                if verdict is Verdict.STOP:
                    self._end_waiting(trial)
            if self._state.is_exhausted:
                self._state.scheduler.exhausted()
                break
            self._configure()
        is_idle = not self._state.running and not self._state.paused
        return self._state.waiting[0] if self._state.waiting and is_idle else None

    def _add(self, trial: Trial) -> None:
        if not self._directory.record.knows(trial.name):
            self._directory.add(trial)

    def _end_waiting(self, trial: Trial) -> None:
        """End a trial that the scheduler stopped before it began, or began again in a resumed sweep."""
        self._add(trial)
        ending = self.on_end(trial, False, None)
        self._directory.trial_status(trial, ending.status, None, ending.message)
        self.standings.note(f"{trial.name[:5]} ends early: {ending.message}")

    def _configure(self) -> None:
        """Ask for the next configuration; an invalid one counts as a failure."""
        number = self._state.configurations
        point = self._state.searcher.suggest(number)
        for note in self._state.searcher.drain_notes():
            self.standings.note(note)
        if point is None:
            self._journal.write(Event.EXHAUSTED)
            self._state.exhausted()
            self.standings.note(f"every point of the space was tried: the sweep ends after {number} configurations")
            return
        try:
            trials = self._sweep.trials(number, point)
        except ConfigError as error:
            why = error.problems[0].message
            self._write_configured(number, point, why)
            self._state.refused(why)
        else:
            self._write_configured(number, self._sweep.current_point(trials[0], point), None)
            self._state.configured(point, trials)

    def _write_configured(self, number: int, point: Point, refused: str | None) -> None:
        self._journal.write(Event.CONFIGURED, number=number, point=point, refused=refused)

    def _begin(self, trial: Trial) -> None:
        self._journal.write(Event.BEGUN, trial=trial.name)
        self._state.begun(trial)

    def _report(self, trial: Trial, row: Mapping[str, Any], is_last: bool, milestone: str | None) -> Judgement:
        """Record a row before ``result.json`` has it, so that a decision is on the disk before its effects."""
        columns = (*JOURNALED, self._sweep.search.metric)
        kept = {column: row.get(column) for column in dict.fromkeys(columns)}
        self._journal.write(Event.REPORTED, trial=trial.name, row=kept, is_last=is_last, checkpoint=milestone)
        return self._state.reported(trial, row, is_last, milestone, self._others_wait)

    def _others_wait(self) -> bool:
        return self._is_full() and (bool(self._state.paused) or self._next_waiting() is not None)

    @property
    def is_over_time(self) -> bool:
        """Whether ``search.time_budget_s`` has passed."""
        return self.deadline_s is not None and time.time() >= self.deadline_s


def _divergence(row: Mapping[str, Any]) -> str | None:
    """Return that a trial has diverged: its loss, or the mean over all ended episodes, is not finite."""
    looked_at = [*_LOSSES, *(["episode_reward_mean_all"] if row.get("episodes_total") else [])]
    for name in looked_at:
        value = row.get(name)
        if isinstance(value, float) and not math.isfinite(value):
            return f"diverged: {name} is {value} after {row['timesteps_total']:,} env steps"
    return None
