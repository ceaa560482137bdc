"""Trial schedulers that end trials early: asynchronous successive halving, the median stopping rule, and HyperBand.

HyperBand has brackets of synchronous successive halving, whose trials pause at each rung until all have reached it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from random import Random
from typing import Any

import numpy as np

from rlexp.config.sweep import Sweep
from rlexp.sample_batch import Array
from rlexp.search.trial_scheduler import CONTINUE, PAUSE, Judgement, Milestones, Report, TrialScheduler, Verdict


@dataclass
class Rung:
    """A time at which trials are compared."""

    at: float
    bracket: int
    values: dict[str, float] = field(default_factory=dict)
    """Values by trial, in the order in which they reached it."""
    ended: list[str] = field(default_factory=list)

    def end(self, trial: str, keep: int) -> Judgement:
        """Record that a trial ends here, while the ``keep`` best ones continue; return that judgement."""
        self.ended.append(trial)
        value = self.values[trial]
        continuing = f"{keep} continues" if keep == 1 else f"{keep} continue"
        reason = f"rank {self.rank(trial)} of {len(self.values)} at rung {self.at:,.0f}; {continuing}"
        return Judgement(Verdict.STOP, reason, at=self.at, value=value)

    def rank(self, trial: str) -> int:
        """Return the rank of a trial among those that have reached the rung; equal values share the best one."""
        return sum(other > self.values[trial] for other in self.values.values()) + 1


class Asha(TrialScheduler):
    """Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020).

    The stopping variant: a trial that reaches a rung continues if it is among the best 1 / ``factor`` of those that
    have reached it so far, itself included and at least one; no trial waits for the others. A value is used for the
    highest rung that its trial has passed.

    Each of several brackets has its own rungs, and begins one rung later than the one before. A trial is drawn into
    bracket ``s`` of ``n`` with the share that it has in HyperBand: ``factor ** (n - 1 - s) * n / (n - s)``, over their
    sum (Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture Search", 2020, section 3.1).
    """

    def __init__(self, milestones: Milestones, brackets: int, rng: Random) -> None:
        """Initialise; ``milestones`` are the rungs of the first bracket."""
        assert milestones.factor is not None
        self.milestones: Milestones = milestones
        self._factor = milestones.factor
        self._shares = [self._factor ** (brackets - 1 - s) * brackets / (brackets - s) for s in range(brackets)]
        self._rng = rng
        self._brackets: dict[str, int] = {}
        self._rungs: dict[tuple[int, float], Rung] = {}
        """Rungs by bracket and time."""
        self._passed: dict[str, float] = {}
        """The highest rung for which a value of each trial was used."""

    @classmethod
    def of(cls, sweep: Sweep) -> Asha:
        search = sweep.search
        milestones = Milestones(search.time_attr, sweep.stop_interval, search.asha.reduction_factor)
        return cls(milestones, search.asha.brackets, sweep.rng("brackets"))

    def configured(self, trials: Sequence[str]) -> None:
        bracket = self._rng.choices(range(len(self._shares)), self._shares)[0]
        self._brackets |= dict.fromkeys(trials, bracket)

    def judge(self, report: Report) -> Judgement:
        at, bracket = self.milestones.passed_by(report.time), self._brackets[report.trial]
        first = self.milestones.first * self._factor**bracket
        if math.isnan(report.value) or at < first or at <= self._passed.get(report.trial, 0.0):
            return CONTINUE
        self._passed[report.trial] = at
        rung = self._rungs.setdefault((bracket, at), Rung(at, bracket))
        rung.values[report.trial] = report.value
        keep = max(math.ceil(len(rung.values) / self._factor), 1)
        return rung.end(report.trial, keep) if rung.rank(report.trial) > keep else CONTINUE

    def state(self) -> Mapping[str, Any]:
        return {"early_stopping": [asdict(rung) for _, rung in sorted(self._rungs.items())]}


class MedianStopping(TrialScheduler):
    """The median stopping rule (Golovin et al., "Google Vizier", 2017, section 3.2.2).

    A trial ends if its best value so far is below the median of the others' running averages at that time.
    """

    def __init__(self, milestones: Milestones, min_others: int) -> None:
        """Initialise; no trial is judged before the first milestone."""
        self.milestones: Milestones = milestones
        self._min_others = min_others
        self._averages = RunningAverages()
        self._best: dict[str, float] = {}
        self._ended: dict[str, str] = {}

    @classmethod
    def of(cls, sweep: Sweep) -> MedianStopping:
        milestones = Milestones(sweep.search.time_attr, sweep.stop_interval)
        return cls(milestones, sweep.search.median.min_samples_required)

    def judge(self, report: Report) -> Judgement:
        trial, time, value = report.trial, report.time, report.value
        if math.isnan(value) or not self._averages.add(trial, time, value):
            return CONTINUE
        self._best[trial] = max(value, self._best.get(trial, -math.inf))
        if time < self.milestones.first:
            return CONTINUE
        others = self._averages.of_others(trial, time)
        if len(others) < self._min_others or self._best[trial] >= np.median(others):
            return CONTINUE
        self._ended[trial] = f"below the median of {len(others)} others at {time:,.0f}"
        return Judgement(Verdict.STOP, self._ended[trial], at=time, value=value)

    def state(self) -> Mapping[str, Any]:
        return {"early_stopping": [{"trial": trial, "why": why} for trial, why in self._ended.items()]}


class RunningAverages:
    """The mean of each trial's values up to each of its times, in one table, so that thousands are read at once."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._times = np.full((1, 1), np.inf)
        """Times [trial, report]; infinite if there is no report."""
        self._averages = np.zeros((1, 1))
        self._counts = np.zeros(1, dtype=np.int64)
        self._last = np.full(1, -np.inf)

    def add(self, trial: str, time: float, value: float) -> bool:
        """Add a value; return False, with nothing changed, if the trial has one at ``time`` or later."""
        row = self._rows.setdefault(trial, len(self._rows))
        self._grow(row)
        count = int(self._counts[row])
        if time <= self._last[row]:
            return False
        before = self._averages[row, count - 1] if count else 0.0
        self._times[row, count] = self._last[row] = time
        self._averages[row, count] = before + (value - before) / (count + 1)
        self._counts[row] = count + 1
        return True

    def of_others(self, trial: str, time: float) -> Array:
        """Return the averages at ``time`` of all other trials that have a value then or later.

        A trial with values only after ``time`` contributes its first value.
        """
        reached = self._last >= time
        reached[self._rows[trial]] = False
        counts = np.count_nonzero(self._times[reached] <= time, axis=1)
        averages: Array = self._averages[reached, np.maximum(counts - 1, 0)]
        return averages

    def _grow(self, row: int) -> None:
        rows, columns = self._times.shape
        more_rows = rows if row >= rows else 0
        more_columns = columns if row < rows and self._counts[row] >= columns else 0
        if not more_rows and not more_columns:
            return
        size = (0, more_rows), (0, more_columns)
        self._times = np.pad(self._times, size, constant_values=np.inf)
        self._averages = np.pad(self._averages, size)
        self._counts = np.pad(self._counts, size[0])
        self._last = np.pad(self._last, size[0], constant_values=-np.inf)


@dataclass
class _Bracket:
    """Configurations that are compared with each other at the same rungs."""

    number: int
    skipped: int
    """Number of the lowest rungs that it does not have."""
    size: int
    """Most configurations in it."""
    open: dict[str, float] = field(default_factory=dict)
    """The highest rung that each of its trials has passed, without ended trials."""
    num_configured: int = 0
    rungs: dict[float, Rung] = field(default_factory=dict)
    ends: dict[str, Judgement] = field(default_factory=dict)
    """Judgements of the trials that end at a rung."""
    decided: float = 0.0
    """The highest rung at which it is decided who continues."""

    def has_reached(self, at: float) -> bool:
        """Return whether all of its trials have passed a rung, or have ended."""
        return self.num_configured >= self.size and all(rung >= at for rung in self.open.values())

    def decide(self, at: float, factor: float) -> None:
        """Let the best 1 / ``factor`` at a rung continue, at least one; the earlier of two with equal values.

        Trials without a value there take the remaining places, as a long first episode may not have ended.
        """
        self.decided, rung = at, self.rungs[at]
        ranked = sorted(rung.values, key=lambda trial: -rung.values[trial])
        unknown = [trial for trial in self.open if trial not in rung.values]
        keep = max(math.floor((len(ranked) + len(unknown)) / factor), 1)
        self.ends |= {trial: rung.end(trial, keep) for trial in ranked[keep:] if trial in self.open}
        no_value = Judgement(Verdict.STOP, f"no value at rung {at:,.0f}")
        self.ends |= dict.fromkeys(unknown[max(keep - len(ranked), 0) :] if ranked else (), no_value)


class HyperBand(TrialScheduler):
    """HyperBand (Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", 2018, alg. 1).

    With ``s`` rungs below the stop, a bracket takes ``ceil((s_max + 1) / (s + 1) * factor ** s)`` configurations; at
    each rung the best 1 / ``factor`` continue. Brackets with ``s_max``, ``s_max - 1`` ... 0 rungs follow each other,
    then the first kind repeats; the last bracket takes the rest.
    """

    def __init__(self, milestones: Milestones, most_rungs: int, num_configurations: int) -> None:
        """Initialise; ``milestones`` are the rungs of a bracket with ``most_rungs``."""
        assert milestones.factor is not None
        self.milestones: Milestones = milestones
        self._factor = milestones.factor
        self._last = milestones.first * self._factor ** (most_rungs - 1)
        """The highest rung."""
        self._brackets = list(self._planned(most_rungs, num_configurations))
        self._of: dict[str, _Bracket] = {}

    @classmethod
    def of(cls, sweep: Sweep) -> HyperBand:
        search, limit = sweep.search, sweep.stop_limit
        options = search.hyperband
        assert limit is not None  # otherwise the file was refused
        milestones = Milestones(search.time_attr, sweep.stop_interval, options.reduction_factor, writes_checkpoint=True)
        return cls(milestones, options.number_of_rungs(milestones.first, limit), sweep.number_of_configurations)

    def configured(self, trials: Sequence[str]) -> None:
        bracket = next((each for each in self._brackets if each.num_configured < each.size), None)
        assert bracket is not None  # there are as many as configurations
        bracket.num_configured += 1
        bracket.open |= dict.fromkeys(trials, 0.0)
        self._of |= dict.fromkeys(trials, bracket)

    def exhausted(self) -> None:
        for bracket in self._brackets:
            bracket.size = min(bracket.size, bracket.num_configured)

    def judge(self, report: Report) -> Judgement:
        bracket, at = self._of[report.trial], self.milestones.passed_by(report.time)
        first = self.milestones.first * self._factor**bracket.skipped
        if report.trial in bracket.ends:
            return bracket.ends[report.trial]
        if not first <= at <= self._last or at <= bracket.decided or report.trial not in bracket.open:
            return CONTINUE
        rung = bracket.rungs.setdefault(at, Rung(at, bracket.number))
        if not math.isnan(report.value):
            rung.values.setdefault(report.trial, report.value)
        bracket.open[report.trial] = max(at, bracket.open[report.trial])
        judgement = self.judge_paused(report.trial)
        return CONTINUE if judgement is PAUSE and report.checkpoint is None else judgement

    def judge_paused(self, trial: str) -> Judgement:
        bracket = self._of[trial]
        if trial in bracket.ends:
            return bracket.ends[trial]
        at = bracket.open.get(trial, 0.0)
        if at > bracket.decided:
            if not bracket.has_reached(at):
                return PAUSE
            bracket.decide(at, self._factor)
        return bracket.ends.get(trial, CONTINUE)

    def ended(self, trial: str, failed: bool) -> None:
        bracket = self._of[trial]
        bracket.open.pop(trial, None)
        if failed:
            for rung in bracket.rungs.values():
                if rung.at > bracket.decided:
                    rung.values.pop(trial, None)

    def state(self) -> Mapping[str, Any]:
        rungs = [rung for bracket in self._brackets for _, rung in sorted(bracket.rungs.items())]
        return {"early_stopping": [asdict(rung) for rung in rungs]}

    def _planned(self, most_rungs: int, num_configurations: int) -> Iterator[_Bracket]:
        left, number = num_configurations, 0
        for rungs in cycle(range(most_rungs, -1, -1)):
            if left <= 0:
                return
            size = min(math.ceil((most_rungs + 1) / (rungs + 1) * self._factor**rungs), left)
            yield _Bracket(number, most_rungs - rungs, size)
            left, number = left - size, number + 1
