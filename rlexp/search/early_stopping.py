"""Schedulers that end trials early, as pure rules: they see names, times and values of which more is better."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol


class EarlyStopping(Protocol):
    """Judges trials by what they have reported; a trial without a finite value yet is not asked about.

    What was decided stands: a trial that began again from an earlier step is not judged again until it has passed
    where it was, and what it was there still counts for the others.
    """

    def judge(self, trial: str, time: float, value: float) -> str | None:
        """Take over a trial's value at a time of its own; return why it ends, None where it goes on."""

    def state(self) -> Any:
        """Return what is remembered, as JSON has it."""


class NeverStopping:
    """``fifo``: every trial goes on to its own end."""

    def judge(self, trial: str, time: float, value: float) -> str | None:
        return None

    def state(self) -> Any:
        return []


@dataclass
class Rung:
    """A time at which trials are compared."""

    at: float
    values: dict[str, float] = field(default_factory=dict)
    """By trial, in the order in which they came."""
    ended: list[str] = field(default_factory=list)


class Asha:
    """Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020).

    The stopping variant: whoever reaches a rung goes on if it is among the best 1 / ``factor`` of those that have
    reached it so far, itself included and at least one; nobody waits for the others.
    """

    def __init__(self, first: float, factor: float) -> None:
        self.rungs: list[Rung] = []
        """Those that were reached, the lowest first: at ``first``, ``first * factor`` and so on."""
        self._first = first
        self._factor = factor

    def judge(self, trial: str, time: float, value: float) -> str | None:
        self._add_rungs_up_to(time)
        new = [rung for rung in self.rungs if rung.at <= time and trial not in rung.values]
        for rung in new:
            rung.values[trial] = value
        for rung in new:
            rank = sum(other > value for other in rung.values.values()) + 1
            going_on = max(math.ceil(len(rung.values) / self._factor), 1)
            if rank > going_on:
                rung.ended.append(trial)
                continuing = "1 trial continues" if going_on == 1 else f"{going_on} trials continue"
                return f"rank {rank} of {len(rung.values)} at rung {rung.at:,.0f}; {continuing}"
        return None

    def state(self) -> Any:
        return [{"at": rung.at, "values": dict(rung.values), "ended": list(rung.ended)} for rung in self.rungs]

    def _add_rungs_up_to(self, time: float) -> None:
        while (at := self._first * self._factor ** len(self.rungs)) <= time:
            self.rungs.append(Rung(at))


class MedianStopping:
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

    def judge(self, trial: str, time: float, value: float) -> str | None:
        sums, times = self._sums[trial], self._times[trial]
        if times and time <= times[-1]:
            return None
        times.append(time)
        sums.append(value + (sums[-1] if sums else 0.0))
        self._best[trial] = max(value, self._best.get(trial, -math.inf))
        others = [self._average(other, time) for other in self._times if other != trial and self._reached(other, time)]
        if time < self._grace or len(others) < self._min_others or self._best[trial] >= median(others):
            return None
        self._ended[trial] = f"below the median of {len(others)} others at {time:,.0f}"
        return self._ended[trial]

    def state(self) -> Any:
        return [{"trial": trial, "why": why} for trial, why in self._ended.items()]

    def _reached(self, trial: str, time: float) -> bool:
        return self._times[trial][-1] >= time

    def _average(self, trial: str, time: float) -> float:
        count = bisect_right(self._times[trial], time) or 1
        return self._sums[trial][count - 1] / count
