"""Search: the feed of a sweep. It asks the searcher for configurations and the scheduler about results."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.variants.sweep import Point
from rlexp.errors import CheckpointError, ConfigError
from rlexp.runs.exploit import copied_checkpoint, put_in_place
from rlexp.runs.recorders import flatten
from rlexp.runs.recorders.tensorboard_recorder import SCORE_TAG, TAG_PREFIX, write_score
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_record import Status, TrialError
from rlexp.search.checkpoint_milestones import Milestones
from rlexp.search.journal import JOURNALED, Event, Journal
from rlexp.search.population import Exploit, Population
from rlexp.search.record import SearchRecord
from rlexp.search.state import SearchState
from rlexp.search.trial_source import GO_ON, Action, Ending, Verdict

_LOSS = "info/learner/loss"


class Search:
    """Decides while a sweep runs: by its state, which takes over whatever is also written into the journal.

    The runner is its only caller, in one thread; it needs no Ray.
    """

    def __init__(
        self, state: SearchState, directory: RunDirectory, journal: Journal, capacity: int, allow_failures: int
    ) -> None:
        """``capacity`` trials run at a time at most, and so many may fail without the sweep failing."""
        search = state.sweep.search
        self.standings = state.standings
        self.deadline_s: float | None = None
        if search.time_budget_s is not None:
            self.deadline_s = time.time() + search.time_budget_s - journal.elapsed_s
        self.hang_timeout_s: float | None = search.hang_timeout_s
        self.milestones: Milestones | None = None
        if state.population is not None:
            self.milestones = Milestones(search.time_attr, state.sweep.stop_interval)
        self._state = state
        self._sweep = state.sweep
        self._directory = directory
        self._journal = journal
        self._record = SearchRecord(state.sweep, directory.path)
        self._capacity = capacity
        self._allow_failures = allow_failures
        self._judged: set[str] = set()
        self.hparams_metrics: Sequence[str] = (SCORE_TAG, TAG_PREFIX + search.metric)
        self._scores: dict[str, float | None] = {}
        """What trials scored when they ended: it may change as others end."""

    def next(self) -> Trial | None:
        if len(self._state.running) >= self._capacity or self._is_over_time() or not self._is_another_left():
            return None
        trial = self._state.waiting[0]
        if all(record.name != trial.name for record in self._directory.record.trials):
            self._directory.add(trial)
        self._begin(trial)
        return trial

    @property
    def finished(self) -> bool:
        return self._is_over_time() or (self._is_exhausted() and not self._state.waiting)

    def judge(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Verdict:
        milestone = None if checkpoint is None else f"{checkpoint.parent.name}/{checkpoint.name}"
        self._report(trial, row, False, milestone)
        self._judged.add(trial.name)
        if self.is_pruned(trial):
            return Verdict(Action.END)
        if self._state.population is None or milestone is None:
            return GO_ON
        changed = self._takeover(self._state.population, trial, milestone)
        if changed is None and not self._others_wait():
            return GO_ON
        self._state.paused_at_milestone(trial)
        return Verdict(Action.PAUSE, changed)

    def waits(self, paused: Sequence[Trial]) -> Trial | None:
        """Return the one that has come least far, where there is room for it and none is left to begin."""
        room = len(self._state.running) < self._capacity and (self._is_over_time() or not self._is_another_left())
        trial = min(paused, key=lambda each: self.standings.of(each).timesteps_total, default=None)
        if trial is None or not room:
            return None
        self._begin(trial)
        return trial

    def on_start(self, trial: Trial) -> None:
        self.standings.of(trial).status = Status.RUNNING

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        if trial.name in self._judged:
            self._judged.remove(trial.name)
        else:
            self._report(trial, row, True, None)
        self._record.write_when_due(self.standings, self._state.summary)

    def problem(self, trial: Trial, row: Mapping[str, Any]) -> str | None:
        """Return that a trial has diverged: the loss, or the mean over all episodes that ended, is no finite number."""
        flat = flatten(row)
        looked_at = [_LOSS] + (["episode_reward_mean_all"] if flat.get("episodes_total") else [])
        for name in looked_at:
            value = flat.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                return f"diverged: {name} is {value} after {flat['timesteps_total']:,} env steps"
        return None

    def drain_notes(self) -> list[str]:
        return self.standings.drain_notes()

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return what is searched, and the seed: with every key, the tab would have a column for each."""
        return {**trial.varied, "seed": trial.experiment.config.seed}

    def on_end(self, trial: Trial, finished: bool, error: TrialError | None) -> Ending:
        why = self._state.pruned.get(trial.name)
        if error is not None:
            status = Status.ERROR
        elif why is not None:
            status = Status.PRUNED
        else:
            status = Status.TERMINATED if finished else Status.STOPPED
        if finished and self._is_over_time() and error is None:
            status, why = Status.STOPPED, "search.time_budget_s is over"
        self._journal.write(Event.ENDED, trial=trial.name, status=status, error=asdict(error) if error else None)
        self._state.ended(trial, status, error)
        self._record.write(self.standings, self._state.summary)
        self._scores[trial.name] = self.standings.score_of(trial)
        return Ending(status, why, self._scores[trial.name])

    def conclude(self, status: Status) -> Status:
        """Write what the sweep leaves; it has failed where more trials did than may, or none has a score.

        One that was stopped before its end has neither failed nor succeeded.
        """
        self._record.write(self.standings, self._state.summary)
        self._record.write_best(self.standings, self._state.points)
        self._write_changed_scores()
        if not self._is_over_time() and not self.is_complete:
            return Status.STOPPED
        failures = len(self.standings.failures()) + len(self.standings.refused)
        if failures > self._allow_failures or self.standings.best() is None:
            return Status.ERROR
        return Status.TERMINATED

    def _write_changed_scores(self) -> None:
        """Write the scores of the ranking for TensorBoard, where it has other ones."""
        for standing in self.standings.ranked():
            for each, score in zip(standing.trials, standing.scores, strict=True):
                if score is not None and score != self._scores.get(each.trial.name):
                    write_score(self._directory.trial_directory(each.trial), score, each.timesteps_total)
                    self._scores[each.trial.name] = score

    def is_pruned(self, trial: Trial) -> bool:
        """Whether it was decided that a trial ends early."""
        return trial.name in self._state.pruned

    @property
    def is_complete(self) -> bool:
        """Whether every configuration was tried, to the end of each trial."""
        return self._is_exhausted() and not self._state.waiting and not self._state.unfinished()

    def _is_exhausted(self) -> bool:
        return self._state.configurations >= self._sweep.number_of_configurations

    def _is_another_left(self) -> bool:
        """Return whether a trial is left that has not begun; asks the searcher where none is known."""
        while not self._state.waiting and not self._is_exhausted():
            self._configure()
        return bool(self._state.waiting)

    def _configure(self) -> None:
        """Take the next configuration; one that cannot be is told as a failure."""
        number = self._state.configurations
        point = self._state.searcher.suggest(number)
        assert point is not None  # a searcher has as many as the sweep
        try:
            trials = self._sweep.trials(number, point)
        except ConfigError as error:
            why = error.problems[0].message
            self._write_configured(number, point, why)
            self._state.refused(why)
        else:
            self._write_configured(number, self._sweep.point_of(trials[0]), None)
            self._state.configured(point, trials)

    def _write_configured(self, number: int, point: Point, refused: str | None) -> None:
        self._journal.write(Event.CONFIGURED, number=number, point=point, refused=refused)

    def _begin(self, trial: Trial) -> None:
        self._journal.write(Event.BEGUN, trial=trial.name)
        self._state.begun(trial)

    def _report(self, trial: Trial, row: Mapping[str, Any], is_last: bool, milestone: str | None) -> None:
        """Take over a row; before ``result.json`` has it where it is judged, so that what is decided is kept first."""
        flat = flatten(row)
        columns = (*JOURNALED, self._sweep.search.metric)
        kept = {column: flat.get(column) for column in dict.fromkeys(columns)}
        self._journal.write(Event.REPORTED, trial=trial.name, row=kept, is_last=is_last, checkpoint=milestone)
        self._state.reported(trial, row, is_last, milestone)

    def _takeover(self, population: Population, trial: Trial, milestone: str) -> Trial | None:
        """Return a trial as it goes on with another's checkpoint; None where it is not due, or that cannot be had."""
        exploit = population.due(trial.name, milestone)
        if exploit is None:
            return None
        donor, directory = self._directory.path / exploit.checkpoint, self._directory.trial_directory(trial)
        try:
            changed = self._sweep.changed(trial, exploit.after)
            copy = copied_checkpoint(donor, directory)
        except (CheckpointError, ConfigError, OSError) as error:
            self.standings.note(f"{trial.name[:5]} cannot copy {exploit.donor[:5]}: {error}")
            return None
        self._journal.write(Event.TOOK_OVER, exploit=asdict(exploit))
        put_in_place(copy, directory / donor.name)
        self._state.took_over(exploit, changed)
        self.standings.note(self._told(exploit))
        return changed

    def _told(self, exploit: Exploit) -> str:
        values = f"{self._state.sign * exploit.value:.4g} against {self._state.sign * exploit.donor_value:.4g}"
        return f"{exploit.trial[:5]} copies {exploit.donor[:5]}, {values}: {exploit.changes}"

    def _others_wait(self) -> bool:
        is_full = len(self._state.running) >= self._capacity
        return is_full and (bool(self._state.paused) or self._is_another_left())

    def _is_over_time(self) -> bool:
        return self.deadline_s is not None and time.time() >= self.deadline_s
