"""Trial schedulers that end trials early: asynchronous successive halving, and the median stopping rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

from rlexp.config.sweep import Sweep
from rlexp.sample_batch import Array
from rlexp.search.trial_scheduler import CONTINUE, Judgement, Milestones, Report, TrialScheduler, Verdict


@dataclass
class Rung:
    """A time at which trials are compared."""

    at: float
    bracket: int
    values: dict[str, float] = field(default_factory=dict)
    """By trial, in the order in which they reached it."""
    ended: list[str] = field(default_factory=list)

    def end(self, trial: str, keep: int) -> Judgement:
        """Record that a trial ends here, where the ``keep`` best ones continue; return that judgement."""
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
    have reached it so far, itself included and at least one; no trial waits for the others. A value counts for the
    highest rung that its trial has passed.

    Of several brackets, each has its own rungs, and begins one rung later than the one before. A trial is drawn into
    bracket ``s`` of ``n`` with the share that it has in HyperBand: ``factor ** (n - 1 - s) * n / (n - s)``, over their
    sum (Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture Search", 2020, section 3.1).
    """

    def __init__(self, milestones: Milestones, brackets: int, rng: Random) -> None:
        """``milestones`` are the rungs of the first bracket."""
        assert milestones.factor is not None
        self.milestones: Milestones = milestones
        self._factor = milestones.factor
        self._shares = [self._factor ** (brackets - 1 - s) * brackets / (brackets - s) for s in range(brackets)]
        self._rng = rng
        self._brackets: dict[str, int] = {}
        self._rungs: dict[tuple[int, float], Rung] = {}
        """By bracket and time."""
        self._passed: dict[str, float] = {}
        """The highest rung for which a value of each trial has counted."""

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

    A trial ends at a time where its best value so far is below the median of the others' running averages up to then.
    """

    def __init__(self, milestones: Milestones, min_others: int) -> None:
        """No trial is judged before the first milestone."""
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
    """The mean of each trial's values up to each of its times; one table, so that thousands are asked at once."""

    _GROWTH: Final = 2

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._times = np.full((1, 1), np.inf)
        """[trial, report]; infinite where there is no report."""
        self._averages = np.zeros((1, 1))
        self._counts = np.zeros(1, dtype=np.int64)
        self._last = np.full(1, -np.inf)

    def add(self, trial: str, time: float, value: float) -> bool:
        """Add a value; return False, with nothing changed, where the trial has one at ``time`` or later."""
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

        Of one with values after ``time`` only, its first value.
        """
        reached = self._last >= time
        reached[self._rows[trial]] = False
        counts = np.count_nonzero(self._times[reached] <= time, axis=1)
        averages: Array = self._averages[reached, np.maximum(counts - 1, 0)]
        return averages

    def _grow(self, row: int) -> None:
        rows, columns = self._times.shape
        more_rows = rows * (self._GROWTH - 1) if row >= rows else 0
        more_columns = columns * (self._GROWTH - 1) if row < rows and self._counts[row] >= columns else 0
        if not more_rows and not more_columns:
            return
        size = (0, more_rows), (0, more_columns)
        self._times = np.pad(self._times, size, constant_values=np.inf)
        self._averages = np.pad(self._averages, size)
        self._counts = np.pad(self._counts, size[0])
        self._last = np.pad(self._last, size[0], constant_values=-np.inf)
