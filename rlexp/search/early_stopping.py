"""Trial schedulers that end trials early: asynchronous successive halving, and the median stopping rule."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rlexp.config.variants.sweep import Sweep
from rlexp.search.trial_scheduler import CONTINUE, Judgement, Report, TrialScheduler, Verdict


@dataclass
class Rung:
    """A time at which trials are compared."""

    at: float
    values: dict[str, float] = field(default_factory=dict)
    """By trial, in the order in which they reached it."""
    ended: list[str] = field(default_factory=list)


class Asha(TrialScheduler):
    """Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020).

    The stopping variant: a trial that reaches a rung continues if it is among the best 1 / ``factor`` of those that
    have reached it so far, itself included and at least one; no trial waits for the others.
    """

    def __init__(self, first: float, factor: float) -> None:
        self.rungs: list[Rung] = []
        """Those that were reached, the lowest first: at ``first``, ``first * factor`` and so on."""
        self._first = first
        self._factor = factor

    @classmethod
    def of(cls, sweep: Sweep) -> Asha:
        return cls(sweep.stop_interval, sweep.search.asha.reduction_factor)

    def judge(self, report: Report) -> Judgement:
        if math.isnan(report.value):
            return CONTINUE
        self._add_rungs_up_to(report.time)
        new = [rung for rung in self.rungs if rung.at <= report.time and report.trial not in rung.values]
        for rung in new:
            rung.values[report.trial] = report.value
        for rung in new:
            rank = sum(other > report.value for other in rung.values.values()) + 1
            count = max(math.ceil(len(rung.values) / self._factor), 1)
            if rank > count:
                rung.ended.append(report.trial)
                continuing = "1 trial continues" if count == 1 else f"{count} trials continue"
                reason = f"rank {rank} of {len(rung.values)} at rung {rung.at:,.0f}; {continuing}"
                return Judgement(Verdict.STOP, reason, at=rung.at, value=report.value)
        return CONTINUE

    def state(self) -> Mapping[str, Any]:
        return {"early_stopping": [asdict(rung) for rung in self.rungs]}

    def _add_rungs_up_to(self, time: float) -> None:
        while (at := self._first * self._factor ** len(self.rungs)) <= time:
            self.rungs.append(Rung(at))


class MedianStopping(TrialScheduler):
    """The median stopping rule (Golovin et al., "Google Vizier", 2017, section 3.2.2).

    A trial ends at a time where its best value so far is below the median of the others' running averages up to then.
    """

    def __init__(self, grace: float, min_others: int) -> None:
        self._grace = grace
        self._min_others = min_others
        self._times: dict[str, list[float]] = defaultdict(list)
        self._sums: dict[str, list[float]] = defaultdict(list)
        self._best: dict[str, float] = {}
        self._ended: dict[str, str] = {}

    @classmethod
    def of(cls, sweep: Sweep) -> MedianStopping:
        return cls(sweep.stop_interval, sweep.search.median.min_samples_required)

    def judge(self, report: Report) -> Judgement:
        trial, time, value = report.trial, report.time, report.value
        if math.isnan(value):
            return CONTINUE
        sums, times = self._sums[trial], self._times[trial]
        if times and time <= times[-1]:
            return CONTINUE
        times.append(time)
        sums.append(value + (sums[-1] if sums else 0.0))
        self._best[trial] = max(value, self._best.get(trial, -math.inf))
        others = [self._average(other, time) for other in self._times if other != trial and self._reached(other, time)]
        if time < self._grace or len(others) < self._min_others or self._best[trial] >= median(others):
            return CONTINUE
        self._ended[trial] = f"below the median of {len(others)} others at {time:,.0f}"
        return Judgement(Verdict.STOP, self._ended[trial], at=time, value=value)

    def state(self) -> Mapping[str, Any]:
        return {"early_stopping": [{"trial": trial, "why": why} for trial, why in self._ended.items()]}

    def _reached(self, trial: str, time: float) -> bool:
        return self._times[trial][-1] >= time

    def _average(self, trial: str, time: float) -> float:
        count = bisect_right(self._times[trial], time) or 1
        return self._sums[trial][count - 1] / count
