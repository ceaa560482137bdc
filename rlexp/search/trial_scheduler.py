"""Trial schedulers: rules that decide, after each report of a trial, what the trial does next.

``config/keys/search.py`` has their table: each name with its options and its rule. A rule sees names, times and values
(higher is better); it touches no file and no process. If a configuration has several seeds, SeedGroups shows the rule
their mean, and they end together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from statistics import fmean
from typing import Any, Self

from rlexp.config.keys.search import TimeAttribute
from rlexp.config.sweep import Point, Sweep


class Verdict(Enum):
    """What a trial does after a result."""

    CONTINUE = "continue"
    STOP = "stop"
    """It ends early."""
    PAUSE = "pause"
    """Its process ends; later it continues from its newest checkpoint."""
    EXPLOIT = "exploit"
    """It pauses, and continues from a copy of another trial's checkpoint with other keys, if one can be copied."""


@dataclass(frozen=True)
class Milestones:
    """Times at which trials are compared; an iteration that passes one ends there.

    They are the multiples of ``first``; with a ``factor``, ``first * factor ** n``.
    """

    metric: TimeAttribute
    """The unit of time."""
    first: float
    factor: float | None = None
    writes_checkpoint: bool = False
    """Whether a trial writes a checkpoint at each milestone, to be paused or copied."""

    def passed_by(self, time: float) -> float:
        """Return the highest milestone that is at most ``time``; 0 before the first."""
        if time < self.first:
            return 0.0
        if self.factor is None:
            return time // self.first * self.first
        number = math.floor(math.log(time / self.first, self.factor) + 0.5)  # exact to 1, with any rounding
        return max(at for at in map(self._at, range(max(number - 1, 0), number + 2)) if at <= time)

    def after(self, time: float) -> float:
        """Return the lowest milestone after ``time``."""
        passed = self.passed_by(time)
        if passed == 0.0:
            return self.first
        if self.factor is None:
            return passed + self.first
        return self._at(round(math.log(passed / self.first, self.factor)) + 1)

    def passed(self, before: float, time: float) -> bool:
        """Return whether there is a milestone after ``before`` and at most at ``time``."""
        return self.passed_by(time) > self.passed_by(before)

    def _at(self, number: int) -> float:
        assert self.factor is not None
        return self.first * self.factor**number


@dataclass(frozen=True)
class Report:
    """The progress of a trial."""

    trial: str
    time: float
    """Time of the trial, in the unit of the scheduler's ``time_attr``."""
    value: float
    """Higher is better; NaN if it is not known."""
    point: Point
    checkpoint: str | None
    """The checkpoint written at this report, relative to the run; None if none was written for the scheduler."""
    others_wait: Callable[[], bool]
    """A function that returns whether other trials wait for a place to run."""
    is_running: Callable[[str], bool]
    """A function that returns whether a trial runs."""


@dataclass(frozen=True)
class Exploit:
    """One trial continues from another one's checkpoint."""

    trial: str
    donor: str
    time: float
    """Time of the trial at the milestone of the comparison."""
    value: float
    """The trial's value there; higher is better."""
    donor_value: float
    checkpoint: str
    """The donor's checkpoint, relative to the run."""
    before: Point
    """The trial's keys."""
    after: Point
    """The donor's keys, changed."""

    @property
    def changes(self) -> str:
        """The keys that differ, as text."""
        pairs = ((key, self.before[key], self.after[key]) for key in self.after)
        return ", ".join(f"{key} {old} → {new}" for key, old, new in pairs if old != new) or "same keys"


@dataclass(frozen=True)
class Judgement:
    """A rule's decision about a trial."""

    verdict: Verdict
    reason: str | None = None
    """The reason, for STOP."""
    at: float = math.nan
    """The time of the comparison with others, for STOP."""
    value: float = math.nan
    """The value of the comparison, for STOP; higher is better."""
    yields: bool = False
    """Whether trials that have not begun go first, for CONTINUE of a paused trial."""


CONTINUE = Judgement(Verdict.CONTINUE)
YIELD = Judgement(Verdict.CONTINUE, yields=True)
PAUSE = Judgement(Verdict.PAUSE)
EXPLOIT = Judgement(Verdict.EXPLOIT)
"""The trial is among those that ``TrialScheduler.due`` names."""


class TrialScheduler:
    """``fifo``: every trial continues to its own end. Other rules inherit from it and override what they need.

    A judgement is final: a trial that began again from an earlier step is judged again only after it has passed its
    former position, and its reports there stay valid. A resumed sweep calls the rule again with all reports.
    """

    milestones: Milestones | None = None
    """When trials are compared; None: after each row, or never."""

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        """Return the rule for a sweep."""
        return cls()

    def configured(self, trials: Sequence[str]) -> None:
        """Record the trials of the next configuration, one per seed; none if its point is invalid."""

    def exhausted(self) -> None:
        """Record that no further configurations will come; may be called again."""

    def judge(self, report: Report) -> Judgement:
        """Record a report and return what its trial does; not called for the last row of a trial."""
        return CONTINUE

    def record_last(self, report: Report) -> None:
        """Record the last row of a trial, which is not judged."""

    def judge_paused(self, trial: str) -> Judgement:
        """Return the judgement of a trial that is paused or has not begun: CONTINUE, STOP, or PAUSE to wait longer."""
        return YIELD

    def due(self) -> Collection[str]:
        """Return the trials that are to exploit: paused ones at once, running ones after their next row."""
        return ()

    def exploits(self, trial: str) -> Iterable[Exploit]:
        """Return exploits of a trial that is due, which carries out the first possible one."""
        return ()

    def exploited(self, exploit: Exploit) -> None:
        """Record that an exploit was carried out."""

    def not_exploited(self, trial: str) -> None:
        """Record that no exploit of a due trial is possible."""

    def ended(self, trial: str, failed: bool) -> None:
        """Record that a trial has ended and will report no more."""

    def state(self) -> Mapping[str, Any]:
        """Return its part of ``sweep.json``: ``early_stopping``, ``exploits``, each a list."""
        return {}


@dataclass
class _Seed:
    """One trial of a configuration."""

    reached: float = 0.0
    """The highest milestone that it has passed; infinite after its end."""
    values: dict[float, float] = field(default_factory=dict)
    """The first value at or after a milestone and before the next one, by milestone."""
    newest: float = math.nan

    def value_at(self, milestone: float) -> float:
        """Return its value at a milestone; its last value if it ended before; NaN if there is none."""
        has_ended = math.isinf(self.reached) and all(at < milestone for at in self.values)
        return self.values.get(milestone, self.newest if has_ended else math.nan)


@dataclass
class _Configuration:
    """The trials of a configuration; the rule knows it by the name of the first one."""

    seeds: dict[str, _Seed]
    judged: tuple[float, bool] = (0.0, False)
    """The highest milestone at which the rule judged it, and whether its value was known."""
    end: Judgement | None = None
    """The judgement with which all of its trials end."""
    is_held: bool = False
    """Whether the rule lets it wait."""
    report: Report | None = None
    """The newest report of a seed."""

    @property
    def reached(self) -> float:
        """The highest milestone that all seeds have passed."""
        return min(seed.reached for seed in self.seeds.values())

    def behind(self, trial: str) -> Iterator[str]:
        """Yield the seeds that lag behind one of them."""
        return (name for name, seed in self.seeds.items() if seed.reached < self.seeds[trial].reached)


class SeedGroups(TrialScheduler):
    """Owns the progress of the seeds of each configuration; reports their mean to a rule when all have arrived.

    A seed that arrives first continues while the others of its configuration run. If one of them waits for a place to
    run, it pauses and leaves its place. With a rule that pauses trials, it always pauses there until all have arrived;
    otherwise it could pause only at the next milestone.
    """

    def __init__(self, rule: TrialScheduler, milestones: Milestones) -> None:
        self.milestones: Milestones = replace(milestones, writes_checkpoint=True)
        self._rule_pauses = milestones.writes_checkpoint
        self._rule = rule
        self._configurations: dict[str, _Configuration] = {}
        """Configurations by the name of each of their trials."""

    def configured(self, trials: Sequence[str]) -> None:
        configuration = _Configuration({name: _Seed() for name in trials})
        self._configurations |= dict.fromkeys(trials, configuration)
        self._rule.configured(trials[:1])

    def exhausted(self) -> None:
        self._rule.exhausted()

    def judge(self, report: Report) -> Judgement:
        configuration = self._configurations[report.trial]
        if configuration.end is not None:
            return configuration.end
        self._record(configuration.seeds[report.trial], report)
        configuration.report = report
        judgement = self._judged(configuration)
        if judgement.verdict is Verdict.STOP:
            return judgement
        if report.checkpoint is None:
            return CONTINUE
        if judgement.verdict is Verdict.PAUSE:
            return PAUSE
        waits_for = list(configuration.behind(report.trial))
        if self._rule_pauses:
            return PAUSE if waits_for else CONTINUE
        waits_for = [name for name in waits_for if not report.is_running(name)]
        return PAUSE if waits_for and report.others_wait() else CONTINUE

    def record_last(self, report: Report) -> None:
        """Record a value for milestones at which the other seeds are not judged yet."""
        self._record(self._configurations[report.trial].seeds[report.trial], report)

    def judge_paused(self, trial: str) -> Judgement:
        configuration = self._configurations[trial]
        if configuration.end is not None:
            return configuration.end
        judgement = self._judged(configuration)
        if judgement.verdict is Verdict.CONTINUE and any(configuration.behind(trial)):
            return PAUSE if self._rule_pauses else YIELD
        return judgement

    def ended(self, trial: str, failed: bool) -> None:
        configuration = self._configurations[trial]
        configuration.seeds[trial].reached = math.inf
        if failed and configuration.end is None:
            configuration.end = Judgement(Verdict.STOP, "another seed of its configuration failed")
            self._rule.ended(self._name(configuration), failed=True)
        elif math.isinf(configuration.reached):
            self._rule.ended(self._name(configuration), failed=False)

    def state(self) -> Mapping[str, Any]:
        return self._rule.state()

    def _record(self, seed: _Seed, report: Report) -> None:
        milestone = self.milestones.passed_by(report.time)
        if math.isinf(seed.reached) or milestone < seed.reached:  # it began again from an earlier step
            return
        seed.reached = milestone
        if not math.isnan(report.value):
            seed.newest = report.value
            seed.values.setdefault(milestone, report.value)

    def _judged(self, configuration: _Configuration) -> Judgement:
        """Return the rule's judgement of a configuration, whose seeds may all have passed another milestone."""
        milestone, report = configuration.reached, configuration.report
        if report is None or milestone == 0.0 or math.isinf(milestone):
            return CONTINUE
        name = self._name(configuration)
        value = fmean(seed.value_at(milestone) for seed in configuration.seeds.values())
        is_known = not math.isnan(value)
        if configuration.judged in ((milestone, True), (milestone, is_known)):  # a late value is judged
            judgement = self._rule.judge_paused(name) if configuration.is_held else CONTINUE
        else:
            judgement = self._rule.judge(replace(report, trial=name, time=milestone, value=value))
        configuration.judged = milestone, is_known
        configuration.is_held = judgement.verdict is Verdict.PAUSE
        if judgement.verdict is Verdict.STOP:
            configuration.end = judgement
        return judgement

    def _name(self, configuration: _Configuration) -> str:
        return next(iter(configuration.seeds))


def make_trial_scheduler(sweep: Sweep) -> TrialScheduler:
    """Return the trial scheduler of a sweep; it sees means if configurations have several seeds."""
    module, _, name = sweep.search.scheduler_options.RULE.partition(":")
    rule: type[TrialScheduler] = getattr(import_module(module), name)
    scheduler = rule.of(sweep)
    if sweep.search.num_seeds == 1 or scheduler.milestones is None:
        return scheduler
    return SeedGroups(scheduler, scheduler.milestones)
