"""The ranking of a sweep: the only place that decides what a trial scores and which configuration is better.

The leaderboard, ``trials.csv``, ``sweep.json``, ``best.yaml`` and the HParams tab show what :func:`ranking` returns;
``rlexp compare`` reads it in ``sweep.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from rlexp.config.keys.search import SearchConfig, TimeAttribute
from rlexp.config.keys.trial import Trial
from rlexp.config.variants.sweep import Point
from rlexp.metrics.statistics import FINAL_SHARE, bootstrap_interval, final_score, interquartile_mean_of
from rlexp.runs.run_record import Status

SWEEP_FILE: Final = "sweep.json"
"""The state of the search: every configuration with its point, trials and score, the best first; rungs, takeovers."""
RULE: Final = (
    "A trial scores the mean of {metric} over the last tenth of the steps that all completed trials have; one that "
    "ended early, over the last tenth of its own. Configurations that ended early rank behind all that did not."
)
"""What :func:`ranking` does, as reports print it."""
_SEED: Final = 0
"""Of every bootstrap: the same scores give the same interval, and the one that ``rlexp compare`` gives."""
_ENDED_EARLY: Final = (Status.PRUNED, Status.STOPPED)


@dataclass(frozen=True)
class EndedEarly:
    """How far a configuration came that the scheduler ended: its seeds end together."""

    at: float
    """The rung, in the unit of the scheduler's ``time_attr``."""
    value: float
    """The mean of the metric over its seeds there."""


@dataclass
class TrialStanding:
    """What is known of one trial."""

    trial: Trial
    status: Status = Status.PENDING
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """The metric, where it was known, at ``steps`` env steps."""
    iterations: int = 0
    timesteps_total: int = 0
    time_total_s: float = 0.0
    error: str | None = None
    ended_early: EndedEarly | None = None
    """Where its configuration ended early."""

    @property
    def progress(self) -> dict[TimeAttribute, float]:
        """How far it has come, in each of what a scheduler can count time in."""
        return {
            "timesteps_total": self.timesteps_total,
            "training_iteration": self.iterations,
            "time_total_s": self.time_total_s,
        }


@dataclass(frozen=True)
class Standing:
    """One configuration among the others."""

    configuration: int
    varied: Point
    trials: tuple[TrialStanding, ...]
    scores: tuple[float | None, ...]
    """Of each trial; None without a value, or after a failure."""
    score: float | None
    """What it is ranked by; None where one of its trials failed or has no value yet."""
    interval: tuple[float, float] | None
    """A bootstrap interval of it; None with a single seed."""

    @property
    def failed(self) -> bool:
        """Whether one of its trials did."""
        return any(trial.status is Status.ERROR for trial in self.trials)

    @property
    def status(self) -> Status:
        """That of its trials: the worst of them, or that one of them still runs."""
        statuses = {trial.status for trial in self.trials}
        order = (Status.RUNNING, Status.ERROR, Status.PENDING, *reversed(_ENDED_EARLY))
        return next((status for status in order if status in statuses), Status.TERMINATED)


def ranking(configurations: Mapping[int, Sequence[TrialStanding]], search: SearchConfig) -> list[Standing]:
    """Return the configurations by RULE, the best first; those without a score next to last, failed ones last."""
    end = common_end(trial for trials in configurations.values() for trial in trials)
    standings = [standing_of(number, trials, end, search) for number, trials in configurations.items()]
    sign = 1 if search.mode == "min" else -1
    return sorted(standings, key=lambda each: (_tier(each), sign * (each.score or 0.0), each.configuration))


def standing_of(
    configuration: int, trials: Sequence[TrialStanding], end: float | None, search: SearchConfig
) -> Standing:
    """Return how one configuration stands, where all completed trials have ``end`` env steps."""
    scores = tuple(score_of(trial, end) for trial in trials)
    known = [score for score in scores if score is not None]
    varied = dict(trials[0].trial.varied)
    if len(known) < len(trials):
        return Standing(configuration, varied, tuple(trials), scores, None, None)
    middle, interval = _of_seeds(tuple(sorted(known)), search.rank_by)
    return Standing(configuration, varied, tuple(trials), scores, middle, interval)


def common_end(trials: Iterable[TrialStanding]) -> float | None:
    """Return the steps that all completed trials have, None before the first has completed."""
    ends = (trial.steps[-1] for trial in trials if trial.status is Status.TERMINATED and trial.steps)
    return min(ends, default=None)


def score_of(trial: TrialStanding, end: float | None) -> float | None:
    """Return what a trial scores, where all completed trials have ``end`` env steps."""
    if not trial.values or trial.error is not None:
        return None
    x, values = np.array(trial.steps), np.array(trial.values)
    until = end if end is not None and trial.status is Status.TERMINATED else x[-1]
    return final_score(x, values, until * (1 - FINAL_SHARE), until)


@lru_cache(maxsize=4096)  # ten thousand draws, and displays ask many times a second
def _of_seeds(scores: tuple[float, ...], rank_by: str) -> tuple[float, tuple[float, float] | None]:
    """Return what stands for the seeds of a configuration, and its interval."""
    rng, values = np.random.default_rng(_SEED), np.array(scores)
    if rank_by == "mean":
        return float(values.mean()), bootstrap_interval(values, rng) if len(scores) > 1 else None
    estimate = interquartile_mean_of([values], rng)
    return estimate.value, estimate.interval


def _tier(standing: Standing) -> int:
    if standing.failed:
        return 3
    if standing.score is None:
        return 2
    return 1 if standing.status in _ENDED_EARLY else 0
