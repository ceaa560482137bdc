"""SeedGroups: lets a trial scheduler judge configurations by the mean of their seeds, which end together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from statistics import fmean
from typing import Any

from rlexp.config.sweep import Sweep
from rlexp.search.trial_scheduler import CONTINUE, PAUSE, YIELD, Judgement, Milestones, Report, TrialScheduler, Verdict


@dataclass
class _Seed:
    """One trial of a configuration."""

    reached: float = 0.0
    """The highest milestone that it has passed; infinite after its end."""
    values: dict[float, float] = field(default_factory=dict)
    """The first value at or after a milestone and before the next one, by milestone."""
    newest: float = math.nan

    def value_at(self, milestone: float) -> float:
        """Return its value at a milestone; of one that has ended before, its last value; NaN where there is none."""
        has_ended = math.isinf(self.reached) and all(at < milestone for at in self.values)
        return self.values.get(milestone, self.newest if has_ended else math.nan)


@dataclass
class _Configuration:
    """The trials of a configuration, which the rule knows by the name of the first one."""

    seeds: dict[str, _Seed]
    judged: tuple[float, bool] = (0.0, False)
    """The highest milestone at which the rule has judged it, and whether its value was known."""
    end: Judgement | None = None
    """Why all of its trials end."""
    is_held: bool = False
    """Whether the rule lets it wait."""
    report: Report | None = None
    """The newest one of a seed."""

    @property
    def reached(self) -> float:
        """The highest milestone that all seeds have passed."""
        return min(seed.reached for seed in self.seeds.values())

    def behind(self, trial: str) -> Iterator[str]:
        """Yield the seeds that have not come as far as one of them."""
        return (name for name, seed in self.seeds.items() if seed.reached < self.seeds[trial].reached)


class SeedGroups(TrialScheduler):
    """Owns what the seeds of each configuration have reached; reports their mean to a rule once all are there.

    A seed that comes first runs on while the others of its configuration run. Where one of them waits for a place to
    run, it pauses and leaves its place. With a rule that pauses trials it always pauses there until all have come:
    else it would train on to the next milestone before it can pause.
    """

    def __init__(self, rule: TrialScheduler, milestones: Milestones) -> None:
        self.milestones: Milestones = replace(milestones, writes_checkpoint=True)
        self._rule_pauses = milestones.writes_checkpoint
        self._rule = rule
        self._configurations: dict[str, _Configuration] = {}
        """By the name of each of its trials."""

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
        """Record a value that counts at milestones where the other seeds are still to be judged."""
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
        """Return what the rule says of a configuration, of which all seeds may have passed another milestone."""
        milestone, report = configuration.reached, configuration.report
        if report is None or milestone == 0.0 or math.isinf(milestone):
            return CONTINUE
        name = self._name(configuration)
        value = fmean(seed.value_at(milestone) for seed in configuration.seeds.values())
        is_known = not math.isnan(value)
        if configuration.judged in ((milestone, True), (milestone, is_known)):  # a value that comes late is judged
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
    """Return the trial scheduler that a sweep asks for; it sees means where configurations have several seeds."""
    module, _, name = sweep.search.scheduler_options.RULE.partition(":")
    rule: type[TrialScheduler] = getattr(import_module(module), name)
    scheduler = rule.of(sweep)
    if sweep.search.num_seeds == 1 or scheduler.milestones is None:
        return scheduler
    return SeedGroups(scheduler, scheduler.milestones)
