"""Standings: how the configurations of a sweep compare, while they train and at the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlexp.config.search import SearchConfig, TimeAttribute
from rlexp.config.space import Point
from rlexp.config.trial import Trial
from rlexp.metrics.bootstrap import bootstrap_interval
from rlexp.metrics.final_score import FINAL_SHARE, final_score
from rlexp.metrics.statistics import interquartile_mean_of
from rlexp.tuning.recorders import flatten
from rlexp.tuning.run_record import Status, TrialError, known_number

_SEED: Final = 0
"""Of every bootstrap: the same scores give the same interval, and the one that ``rlexp compare`` gives."""


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
    common_end: float | None = None
    """Env steps that all completed trials have, where this is one of them."""

    @property
    def progress(self) -> dict[TimeAttribute, float]:
        """How far it has come, in each of what a scheduler can count time in."""
        return {
            "timesteps_total": self.timesteps_total,
            "training_iteration": self.iterations,
            "time_total_s": self.time_total_s,
        }

    @property
    def score(self) -> float | None:
        """The mean of the metric over the last tenth of its steps, or of those that all completed trials have.

        None without a value, or after a failure.
        """
        if not self.values or self.error is not None:
            return None
        x, values = np.array(self.steps), np.array(self.values)
        end = x[-1] if self.common_end is None else self.common_end
        return final_score(x, values, end * (1 - FINAL_SHARE), end)


@dataclass(frozen=True)
class Standing:
    """One configuration among the others."""

    configuration: int
    varied: Point
    trials: tuple[TrialStanding, ...]
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
        order = (Status.RUNNING, Status.ERROR, Status.PENDING, Status.STOPPED, Status.PRUNED)
        return next((status for status in order if status in statuses), Status.TERMINATED)


class Standings:
    """Owns what the trials of a sweep have reached; displays read it."""

    def __init__(self, search: SearchConfig, number_of_configurations: int) -> None:
        self.search = search
        self.number_of_configurations = number_of_configurations
        """How many will be tried at most."""
        self.notes: list[str] = []
        """What happened between trials and has not been drained, the newest last."""
        self.refused: dict[int, str] = {}
        """Configurations that could not even begin, and why."""
        self._by_name: dict[str, TrialStanding] = {}
        self._configurations: dict[int, list[TrialStanding]] = {}
        self._intervals: dict[int, tuple[tuple[float, ...], tuple[float, float]]] = {}

    def begin(self, configuration: int, trial: Trial) -> None:
        """Take over that a trial begins; one that goes on is known already."""
        if trial.name in self._by_name:
            return
        standing = TrialStanding(trial)
        self._by_name[trial.name] = standing
        self._configurations.setdefault(configuration, []).append(standing)

    def of(self, trial: Trial) -> TrialStanding:
        """Return what is known of a trial."""
        return self._by_name[trial.name]

    def of_configuration(self, configuration: int) -> Standing:
        """Return how a configuration stands."""
        trials = tuple(self._configurations[configuration])
        scores = [score for trial in trials if (score := trial.score) is not None]
        varied = dict(trials[0].trial.varied)
        if len(scores) < len(trials):
            return Standing(configuration, varied, trials, None, None)
        return Standing(configuration, varied, trials, self._middle(scores), self._interval(configuration, scores))

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take over a row; what it does again, since its trial began again from an earlier step, is taken back."""
        flat, standing = flatten(row), self._by_name[trial.name]
        kept = bisect_right(standing.steps, flat["timesteps_total"] - flat["timesteps_this_iter"])
        del standing.steps[kept:], standing.values[kept:]
        standing.status = Status.RUNNING
        standing.iterations = flat["training_iteration"]
        standing.timesteps_total = flat["timesteps_total"]
        standing.time_total_s = flat["time_total_s"]
        value = known_number(flat.get(self.search.metric))
        if value is not None:
            standing.steps.append(flat["timesteps_total"])
            standing.values.append(value)

    def note(self, text: str) -> None:
        """Remember what happened between trials."""
        self.notes.append(text)

    def drain_notes(self) -> list[str]:
        """Return what was noted since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def on_takeover(self, trial: Trial, donor: str, steps: float) -> None:
        """Take over that a trial goes on as another one from where that one had taken ``steps``, with other keys."""
        standing, other = self._by_name[trial.name], self._by_name[donor]
        count = sum(step <= steps for step in other.steps)
        standing.trial = trial
        standing.steps, standing.values = other.steps[:count], other.values[:count]

    def on_end(self, trial: Trial, status: Status, error: TrialError | None) -> None:
        """Take over that a trial ended."""
        standing = self._by_name[trial.name]
        standing.status = status
        standing.error = error.summary if error else None
        completed = [each for each in self._by_name.values() if each.status is Status.TERMINATED and each.steps]
        for each in completed:
            each.common_end = min(other.steps[-1] for other in completed)

    def ranked(self) -> list[Standing]:
        """Return the configurations, the best first.

        Those that run or ran to their end come before those that were ended early, these before those without a
        value; those with a trial that failed come last.
        """
        sign = 1 if self.search.mode == "min" else -1
        standings = [self.of_configuration(configuration) for configuration in self._configurations]
        return sorted(standings, key=lambda each: (_tier(each), sign * (each.score or 0.0), each.configuration))

    def best(self) -> Standing | None:
        """Return the best configuration, None where there is no score yet."""
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def trials(self) -> list[TrialStanding]:
        """Return all trials in the order in which they began."""
        return list(self._by_name.values())

    def failures(self) -> list[TrialStanding]:
        """Return the trials that failed."""
        return [trial for trial in self._by_name.values() if trial.status is Status.ERROR]

    def _middle(self, scores: list[float]) -> float:
        if self.search.rank_by == "mean":
            return float(np.mean(scores))
        return interquartile_mean_of([np.array(scores)], np.random.default_rng(_SEED)).value

    def _interval(self, configuration: int, scores: list[float]) -> tuple[float, float] | None:
        if len(scores) < 2:
            return None
        key = tuple(scores)
        known = self._intervals.get(configuration)
        if known is None or known[0] != key:  # ten thousand draws, and displays ask many times a second
            known = key, self._drawn_interval(np.sort(scores))
            self._intervals[configuration] = known
        return known[1]

    def _drawn_interval(self, scores: Any) -> tuple[float, float]:
        rng = np.random.default_rng(_SEED)
        if self.search.rank_by == "mean":
            return bootstrap_interval(scores, rng)
        interval = interquartile_mean_of([scores], rng).interval
        assert interval is not None
        return interval


def _tier(standing: Standing) -> int:
    if standing.failed:
        return 3
    if standing.score is None:
        return 2
    return 1 if standing.status in (Status.PRUNED, Status.STOPPED) else 0
