"""Search: the feed of a sweep. It asks the searcher for configurations and the scheduler about results."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.space import Point
from rlexp.config.sweep import Sweep
from rlexp.config.trial import Trial
from rlexp.errors import CheckpointError, ConfigError
from rlexp.tuning.milestones import Milestones
from rlexp.tuning.recorders import flatten
from rlexp.tuning.run_directory import RunDirectory
from rlexp.tuning.run_record import Status, TrialError, known_number
from rlexp.tuning.search.early_stopping import Asha, EarlyStopping, MedianStopping, NeverStopping
from rlexp.tuning.search.population import Exploit, Member, Population
from rlexp.tuning.search.record import SearchRecord
from rlexp.tuning.search.searchers import Fate, Outcome, Searcher
from rlexp.tuning.search.standings import Standings
from rlexp.tuning.takeover import adopt_checkpoint
from rlexp.tuning.trial_feed import GO_ON, Action, Ending, Verdict

_LOSS = "info/learner/loss"


class Search:
    """Owns one sweep while it runs. The runner is its only caller, in one thread; it needs no Ray."""

    def __init__(
        self, sweep: Sweep, searcher: Searcher, directory: RunDirectory, capacity: int, allow_failures: int
    ) -> None:
        """``capacity`` trials run at a time at most, and so many may fail without the sweep failing."""
        search = sweep.search
        self.standings = Standings(search, sweep.number_of_configurations)
        self.deadline_s = None if search.time_budget_s is None else time.time() + search.time_budget_s
        self.hang_timeout_s: float | None = search.hang_timeout_s
        self.milestones: Milestones | None = None
        self._sweep = sweep
        self._searcher = searcher
        self._directory = directory
        self._record = SearchRecord(sweep, directory.path)
        self._capacity = capacity
        self._allow_failures = allow_failures
        self._sign = -1.0 if search.mode == "min" else 1.0
        self._early_stopping = make_early_stopping(sweep)
        self._population: Population | None = None
        if search.scheduler == "pbt":
            self.milestones = Milestones(search.time_attr, sweep.stop_interval)
            self._population = Population(sweep, sweep.number_of_configurations)
        self._queue: deque[Trial] = deque()
        self._next = 0
        self._exhausted = False
        self._running: set[str] = set()
        self._paused: set[str] = set()
        self._points: dict[str, Point] = {}
        self._pruned: dict[str, str] = {}
        self._taken_over: dict[str, tuple[Trial, str, int]] = {}

    def next(self) -> Trial | None:
        if len(self._running) >= self._capacity or self._is_over_time():
            return None
        while not self._queue and not self._exhausted:
            self._fill_queue()
        if not self._queue:
            return None
        trial = self._queue.popleft()
        self._directory.add(trial)
        self.standings.add(trial.index // self._sweep.search.num_seeds, trial)
        self._running.add(trial.name)
        return trial

    @property
    def finished(self) -> bool:
        return self._is_over_time() or (self._exhausted and not self._queue)

    def judge(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Verdict:
        flat = flatten(row)
        value = known_number(flat.get(self._sweep.search.metric))
        at = float(flat[self._sweep.search.time_attr])
        if self._population is not None:
            if checkpoint is None:
                return GO_ON
            steps = flat["timesteps_total"]
            member = Member(self._sign * (value or 0.0), checkpoint, self._points[trial.name], steps)
            return self._looked_at(self._population, trial, at, None if value is None else member)
        why = None if value is None else self._early_stopping.judge(trial.name, at, self._sign * value)
        if why is None:
            return GO_ON
        self._pruned[trial.name] = why
        return Verdict(Action.END)

    def waits(self, paused: Sequence[Trial]) -> Trial | None:
        """Return the one that has come least far, where there is room for it and none is left to begin."""
        room = len(self._running) < self._capacity and (self.finished or not self._is_another_left())
        trial = min(paused, key=lambda each: self.standings.of(each).timesteps_total, default=None)
        if trial is None or not room:
            return None
        self._paused.discard(trial.name)
        self._running.add(trial.name)
        return trial

    def on_start(self, trial: Trial) -> None:
        self.standings.of(trial).status = Status.RUNNING

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        self.standings.on_result(trial, row)
        if trial.name in self._taken_over:  # its last row as what it was
            self.standings.on_takeover(*self._taken_over.pop(trial.name))
        self._record.write_when_due(self.standings, self._state)

    def flaw(self, trial: Trial, row: Mapping[str, Any]) -> str | None:
        """Return that a trial has diverged: the loss, or the mean over all episodes that ended, is no finite number."""
        flat = flatten(row)
        looked_at = [_LOSS] + (["episode_reward_mean_all"] if flat.get("episodes_total") else [])
        for name in looked_at:
            value = flat.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                return f"diverged: {name} is {value} after {flat['timesteps_total']:,} env steps"
        return None

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return what is searched, and the seed: with every key, the tab would have a column for each."""
        return {**trial.varied, "seed": trial.experiment.config.seed}

    def on_end(self, trial: Trial, finished: bool, error: TrialError | None) -> Ending:
        self._running.discard(trial.name)
        self._paused.discard(trial.name)
        why = self._pruned.get(trial.name)
        if error is not None:
            status = Status.ERROR
            if self._population is not None:
                self._population.lost(trial.name)
        elif why is not None:
            status = Status.PRUNED
        else:
            status = Status.TERMINATED if finished else Status.STOPPED
        if finished and self._is_over_time() and error is None:
            status, why = Status.STOPPED, "search.time_budget_s is over"
        self.standings.on_end(trial, status, error)
        self._tell(trial.index // self._sweep.search.num_seeds)
        self._record.write(self.standings, self._state)
        return Ending(status, why, self.standings.of(trial).score)

    def conclude(self, status: Status) -> Status:
        """Write what the sweep leaves; it has failed where more trials did than may, or none has a score."""
        self._record.write(self.standings, self._state)
        self._record.write_best(self.standings, self._points)
        failures = len(self.standings.failures()) + len(self.standings.refused)
        if failures > self._allow_failures or self.standings.best() is None:
            return Status.ERROR
        return Status.TERMINATED if status is Status.ERROR or self._is_over_time() else status

    def _fill_queue(self) -> None:
        """Put the trials of the next configuration into the queue; one that cannot be is told as a failure."""
        point = self._searcher.suggest(self._next)
        if point is None:
            self._exhausted = True
            return
        configuration, self._next = self._next, self._next + 1
        try:
            trials = self._sweep.trials(configuration, point)
        except ConfigError as error:
            self.standings.refused[configuration] = error.problems[0].message
            self._searcher.tell(configuration, Outcome(Fate.FAILED, None))
            return
        self._queue.extend(trials)
        self._points |= {trial.name: point for trial in trials}

    def _looked_at(self, population: Population, trial: Trial, at: float, member: Member | None) -> Verdict:
        """Return whether a trial at a milestone takes over another, or makes room for one that waits."""
        exploit = None if member is None else population.look(trial.name, at, member)
        changed = None if exploit is None else self._taken_over_by(population, trial, exploit)
        if changed is None and not self._others_wait():
            return GO_ON
        self._running.discard(trial.name)
        self._paused.add(trial.name)
        return Verdict(Action.PAUSE, changed)

    def _taken_over_by(self, population: Population, trial: Trial, exploit: Exploit) -> Trial | None:
        """Return the trial as it goes on with its donor's checkpoint; None where that cannot be had."""
        donor = population.member(exploit.donor)
        try:
            changed = self._sweep.changed(trial, exploit.after)
            adopt_checkpoint(donor.checkpoint, self._directory.trial_directory(trial))
        except (CheckpointError, ConfigError, OSError) as error:
            self.standings.note(f"{trial.name[:5]} cannot take over {exploit.donor[:5]}: {error}")
            return None
        population.exploits.append(exploit)
        self._points[trial.name] = exploit.after
        self._taken_over[trial.name] = (changed, exploit.donor, donor.steps)
        values = f"{self._sign * exploit.value:.4g} against {self._sign * exploit.donor_value:.4g}"
        self.standings.note(f"{trial.name[:5]} takes over {exploit.donor[:5]}, {values}: {exploit.changes}")
        return changed

    def _others_wait(self) -> bool:
        return len(self._running) >= self._capacity and (bool(self._paused) or self._is_another_left())

    def _is_another_left(self) -> bool:
        """Return whether a configuration is left that has not begun."""
        while not self._queue and not self._exhausted:
            self._fill_queue()
        return bool(self._queue)

    def _is_over_time(self) -> bool:
        return self.deadline_s is not None and time.time() >= self.deadline_s

    def _tell(self, configuration: int) -> None:
        """Tell the searcher of a configuration all of whose trials have ended."""
        standing = self.standings.of_configuration(configuration)
        over = {Status.TERMINATED, Status.PRUNED, Status.STOPPED, Status.ERROR}
        count = self._sweep.search.num_seeds
        if len(standing.trials) < count or any(trial.status not in over for trial in standing.trials):
            return
        if standing.score is None:
            self._searcher.tell(configuration, Outcome(Fate.FAILED, None))
            return
        fate = Fate.FINISHED if standing.status is Status.TERMINATED else Fate.PRUNED
        steps = min(trial.timesteps_total for trial in standing.trials)
        self._searcher.tell(configuration, Outcome(fate, self._sign * standing.score, steps))

    def _state(self) -> dict[str, Any]:
        """Return what scheduler and population remember, as JSON has it."""
        exploits = self._population.state() if self._population else []
        return {"early_stopping": self._early_stopping.state(), "exploits": exploits}


def make_early_stopping(sweep: Sweep) -> EarlyStopping:
    """Return the rule that ends trials of a sweep early."""
    search = sweep.search
    if search.scheduler == "asha":
        return Asha(sweep.stop_interval, search.asha.reduction_factor)
    if search.scheduler == "median":
        return MedianStopping(sweep.stop_interval, search.median.min_samples_required)
    return NeverStopping()
