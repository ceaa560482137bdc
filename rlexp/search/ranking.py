"""The ranking of a sweep: the only place that decides what a trial scores and which configuration is better.

The leaderboard, ``trials.csv``, ``sweep.json``, ``best.yaml`` and the HParams tab show what :func:`ranking` returns;
``rlexp compare`` reads it in ``sweep.json``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np

from rlexp.config.keys.search import SearchConfig, TimeAttribute
from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Point
from rlexp.metrics import FINAL_SHARE, bootstrap_interval, final_score, interquartile_mean, interquartile_mean_of
from rlexp.runs.record import Status

SWEEP_FILE: Final = "sweep.json"
"""The state of the search: every configuration with its point, trials and score, the best first; rungs, exploits."""
CONFIRMATION_FOLDER: Final = "confirmation"
"""The folder in a sweep's directory with the same file for its best configurations, tried again with other seeds."""
RULE: Final = "Rank: completed by score; ended early, furthest first, by value there; failed."
"""The order of :func:`ranking`, as reports print it: a line of a terminal."""
SCORE_RULE: Final = "A score is the mean of {metric} over the last tenth of the steps that all completed trials have."
"""The result of :func:`score_of`, as reports print it."""
_SEED: Final = 0
"""Seed of every bootstrap: the same scores give the same interval, also in ``rlexp compare``."""
_ENDED_EARLY: Final = (Status.PRUNED, Status.STOPPED)


class Tier(IntEnum):
    """The first criterion: a configuration of a lower tier ranks before all of a higher one."""

    COMPLETED = 0
    """All of its seeds reached their stop; ranked by score."""
    RUNNING = 1
    """One of its seeds runs or waits; ranked by the score so far."""
    ENDED_EARLY = 2
    """The scheduler, the time budget or a person ended one of its seeds, or not all of them began. Ranked by the
    furthest step that every seed reached, then by the value there."""
    WITHOUT_VALUE = 3
    """One of its seeds has no value, or none at the time of the comparison."""
    FAILED = 4
    """One of its seeds failed."""


@dataclass(frozen=True)
class EndedEarly:
    """How far a configuration that ended early came."""

    at: float
    """The time in the scheduler's ``time_attr``: the rung at which the scheduler ended its seeds, or the furthest that
    every seed reached."""
    value: float
    """The mean of the metric over its seeds at that time."""


@dataclass
class TrialStanding:
    """The known facts of one trial."""

    trial: Trial
    configuration: int
    """The number of its configuration."""
    status: Status = Status.PENDING
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """Known values of the metric, at ``steps`` env steps."""
    times: list[float] = field(default_factory=list)
    """Times of the same rows in the unit of the scheduler's ``time_attr``."""
    iterations: int = 0
    timesteps_total: int = 0
    time_total_s: float = 0.0
    error: str | None = None
    ended_early: EndedEarly | None = None
    """The rung at which the scheduler ended its configuration, and the value that it judged: of the rows after it."""

    @property
    def progress(self) -> dict[TimeAttribute, float]:
        """Its progress in each unit in which a scheduler can count time."""
        return {
            "timesteps_total": self.timesteps_total,
            "training_iteration": self.iterations,
            "time_total_s": self.time_total_s,
        }

    def value_at(self, time: float) -> float | None:
        """Return the metric at ``time``, interpolated between rows; None before its first value and after its last."""
        index = bisect_left(self.times, time)
        if index == len(self.times):
            return None
        if self.times[index] == time:
            return self.values[index]
        if index == 0:
            return None
        share = (time - self.times[index - 1]) / (self.times[index] - self.times[index - 1])
        return self.values[index - 1] + share * (self.values[index] - self.values[index - 1])


@dataclass(frozen=True)
class Standing:
    """One configuration among the others."""

    configuration: int
    varied: Point
    trials: tuple[TrialStanding, ...]
    num_seeds: int
    """Number of trials that it is to have."""
    tier: Tier
    scores: tuple[float | None, ...]
    """The score of each trial; None if it did not complete, or runs and has no value yet."""
    score: float | None
    """Its rank criterion within its tier: the mean (or ``rank_by``) of ``scores``; if it ended early, its value there.
    None without a value, or if it failed."""
    ended_early: EndedEarly | None
    """How far it came; None if it did not end early, or has no value there."""
    rank_by: str

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap interval of ``score``; None with a single seed, or if it ended early."""
        known = sorted(score for score in self.scores if score is not None)
        if self.score is None or self.ended_early is not None or len(known) < 2:
            return None
        rng, values = np.random.default_rng(_SEED), np.array(known)
        if self.rank_by == "mean":
            return bootstrap_interval(values, rng)
        return interquartile_mean_of([values], rng).interval

    @property
    def failed(self) -> bool:
        """Whether one of its trials failed."""
        return any(trial.status is Status.ERROR for trial in self.trials)

    @property
    def status(self) -> Status:
        """The worst status of its trials; or RUNNING or PENDING if one still runs or has not begun."""
        statuses = {trial.status for trial in self.trials}
        order = (Status.RUNNING, Status.ERROR, Status.PENDING, *reversed(_ENDED_EARLY))
        found = next((status for status in order if status in statuses), Status.TERMINATED)
        return Status.PENDING if found is Status.TERMINATED and len(self.trials) < self.num_seeds else found

    def value_at(self, time: float) -> float | None:
        """Return the mean over its seeds at ``time`` (in ``time_attr``); None if one of them has no value there."""
        return _mean([trial.value_at(time) for trial in self.trials])


@dataclass(frozen=True)
class EndComparison:
    """A configuration that ended early beside the configuration of rank 1, at the same time."""

    at: float
    of: float | None
    """The ``stop`` in the same unit; None if there is none."""
    unit: TimeAttribute
    value: float
    rank_1_value: float | None
    """Value of rank 1 at the same time; None for rank 1 itself, or if it has none."""


def ranking(standings: Iterable[Standing], search: SearchConfig) -> list[Standing]:
    """Return configurations by RULE, the best first; ties by their number."""
    sign = 1 if search.mode == "min" else -1

    def key(each: Standing) -> tuple[float, ...]:
        furthest = -each.ended_early.at if each.ended_early else 0.0
        return each.tier, furthest, sign * (each.score or 0.0), each.configuration

    return sorted(standings, key=key)


def standing_of(
    configuration: int, trials: Sequence[TrialStanding], end: float | None, search: SearchConfig
) -> Standing:
    """Return one configuration's standing; all completed trials have ``end`` env steps."""
    tier = _tier(trials, search.num_seeds)
    scores = tuple(score_of(trial, end) for trial in trials)
    ended = _ended_early(trials) if tier is Tier.ENDED_EARLY else None
    score = None
    if ended is not None:
        score = ended.value
    elif tier in (Tier.COMPLETED, Tier.RUNNING):
        score = _mean(scores) if search.rank_by == "mean" else _interquartile_mean(scores)
    if score is None and tier is not Tier.FAILED:
        tier = Tier.WITHOUT_VALUE
    varied = dict(trials[0].trial.varied)
    return Standing(configuration, varied, tuple(trials), search.num_seeds, tier, scores, score, ended, search.rank_by)


def surest(ranked: Iterable[Standing], search: SearchConfig) -> Standing | None:
    """Return the completed configuration whose interval has the best worse end; None if none has an interval."""
    completed = [(each, each.interval) for each in ranked if each.tier is Tier.COMPLETED and each.interval is not None]
    ends = [(each, -interval[1] if search.mode == "min" else interval[0]) for each, interval in completed]
    return max(ends, key=lambda pair: pair[1], default=(None, 0.0))[0]


def end_comparison(standing: Standing, best: Standing, unit: TimeAttribute) -> EndComparison | None:
    """Return a configuration beside the best one if it ended early; otherwise None."""
    ended = standing.ended_early
    if ended is None:
        return None
    stop = standing.trials[0].trial.experiment.stop.get(unit)
    there = None if standing.configuration == best.configuration else best.value_at(ended.at)
    return EndComparison(ended.at, stop, unit, ended.value, there)


def common_end(trials: Iterable[TrialStanding]) -> float | None:
    """Return the steps that all completed trials have; None before the first has completed."""
    ends = (trial.steps[-1] for trial in trials if trial.status is Status.TERMINATED and trial.steps)
    return min(ends, default=None)


def score_of(trial: TrialStanding, end: float | None) -> float | None:
    """Return the score of a trial; all completed trials have ``end`` env steps.

    A running trial scores over the last tenth of its own steps so far. None without a value, or if it failed or ended
    early.
    """
    if not trial.values or trial.status in (Status.ERROR, *_ENDED_EARLY):
        return None
    x, values = np.array(trial.steps), np.array(trial.values)
    until = end if end is not None and trial.status is Status.TERMINATED else x[-1]
    return final_score(x, values, until * (1 - FINAL_SHARE), until)


def _tier(trials: Sequence[TrialStanding], num_seeds: int) -> Tier:
    """Return the tier by the statuses of the trials alone."""
    statuses = {trial.status for trial in trials}
    if Status.ERROR in statuses:
        return Tier.FAILED
    if statuses & {Status.RUNNING, Status.PENDING}:
        return Tier.RUNNING
    return Tier.COMPLETED if statuses == {Status.TERMINATED} and len(trials) == num_seeds else Tier.ENDED_EARLY


def _ended_early(trials: Sequence[TrialStanding]) -> EndedEarly | None:
    """Return the rung at which the scheduler ended the trials, else how far all came; None if one has no value there.

    The scheduler judged the first values after the rung. Those of other trials are from other times, so the value
    between two rows is taken; if the first row is after the rung, the value is of how far all came.
    """
    rungs = [trial.ended_early.at for trial in trials[:1] if trial.ended_early is not None]
    for at in (*rungs, float(min((trial.times[-1] if trial.times else 0.0) for trial in trials))):
        value = _mean([trial.value_at(at) for trial in trials])
        if value is not None:
            return EndedEarly(at, value)
    return None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    known = sorted(value for value in values if value is not None)
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _interquartile_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(interquartile_mean(np.array(known))) if known and len(known) == len(values) else None
