"""HyperBand: brackets of synchronous successive halving, whose trials pause at each rung until all are there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

from rlexp.config.sweep import Sweep
from rlexp.search.early_stopping import Rung
from rlexp.search.trial_scheduler import CONTINUE, PAUSE, Judgement, Milestones, Report, TrialScheduler, Verdict


@dataclass
class _Bracket:
    """Configurations that are compared with each other at the same rungs."""

    number: int
    skipped: int
    """Number of the lowest rungs that it does not have."""
    size: int
    """How many configurations it takes."""
    open: dict[str, float] = field(default_factory=dict)
    """The highest rung that each of its trials has passed; without those that have ended."""
    num_configured: int = 0
    rungs: dict[float, Rung] = field(default_factory=dict)
    ends: dict[str, Judgement] = field(default_factory=dict)
    """Of the trials that end at a rung."""
    decided: float = 0.0
    """The highest rung at which it is known who continues."""

    def has_reached(self, at: float) -> bool:
        """Return whether all of its trials have passed a rung, or have ended."""
        return self.num_configured >= self.size and all(rung >= at for rung in self.open.values())

    def decide(self, at: float, factor: float) -> None:
        """Let the best 1 / ``factor`` at a rung continue, at least one; the earlier of two with equal values.

        Trials without a value there take the places that are left: a first episode that is long has not ended yet.
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
    then the first comes again; the last one takes what is left.
    """

    def __init__(self, milestones: Milestones, most_rungs: int, num_configurations: int) -> None:
        """``milestones`` are the rungs of a bracket with ``most_rungs``."""
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
        assert limit is not None  # the file was refused otherwise
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
