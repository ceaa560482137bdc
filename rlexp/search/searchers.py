"""Searchers: suggest the next configuration, and learn from the outcomes of those that were tried."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from rlexp.config.variants.sweep import Point, Sweep
from rlexp.errors import UsageError
from rlexp.search.optuna_space import parameters_of, suggested_point

if TYPE_CHECKING:
    import optuna


class OutcomeStatus(Enum):
    """How a configuration ended."""

    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """The result of a configuration."""

    status: OutcomeStatus
    value: float | None
    """Of which more is better; None for one that failed."""
    time: float = 0.0
    """Of one that ended early: the rung at which it has that value, in the unit of the scheduler's ``time_attr``."""


class Searcher(Protocol):
    """Chooses points, one configuration after the other."""

    def suggest(self, configuration: int) -> Point | None:
        """Return the point of a configuration, the next one each time, or None when all are tried."""

    def restore(self, configuration: int, point: Point) -> None:
        """Record that a point was suggested before the sweep was resumed; called in place of ``suggest``."""

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Record the outcome of a configuration."""


class PlannedSearcher:
    """``grid`` and ``random``: the points are known beforehand, and nothing is learned from them."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = deque(points)

    def suggest(self, configuration: int) -> Point | None:
        return self._points.popleft() if self._points else None

    def restore(self, configuration: int, point: Point) -> None:
        self.suggest(configuration)

    def record(self, configuration: int, outcome: Outcome) -> None:
        return None


class OptunaSearcher:
    """``optuna``: tree-structured Parzen estimators, seeded; points being tried count as bad ones meanwhile.

    The study is in memory. That of a resumed sweep has the same points and values, but not the state of the sampler's
    generator: what it suggests next is as good as what would have come, and not the same.
    """

    def __init__(self, sweep: Sweep) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._study = optuna.create_study(sampler=self._sampler(), direction="maximize")
        self._left = sweep.search.num_samples
        self._asked: dict[int, optuna.Trial] = {}

    def suggest(self, configuration: int) -> Point | None:
        return self._ask(configuration) if self._left else None

    def restore(self, configuration: int, point: Point) -> None:
        """Add a point to the study as one that is being tried; raises KeyError or ValueError where it does not fit."""
        self._study.enqueue_trial(parameters_of(self._sweep.space, point))
        self._ask(configuration)  # gets the point that was enqueued
        # With the first seed of the study, the next draws would repeat its first points.
        self._study.sampler = self._sampler("resumed", configuration + 1)

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Pass the outcome to the study; a failure as pruned before its first value, which is worse than any value.

        Optuna ignores failures and NaN: it would continue to suggest points that diverge.
        """
        from optuna.trial import TrialState

        trial = self._asked.pop(configuration)
        if outcome.status is OutcomeStatus.FINISHED and outcome.value is not None:
            self._study.tell(trial, outcome.value)
            return
        if outcome.status is OutcomeStatus.PRUNED and outcome.value is not None:
            trial.report(outcome.value, int(outcome.time))
        self._study.tell(trial, state=TrialState.PRUNED)

    def _ask(self, configuration: int) -> Point:
        self._left -= 1
        trial = self._study.ask()
        self._asked[configuration] = trial
        return suggested_point(trial, self._sweep.space)

    def _sampler(self, *stream: str | int) -> optuna.samplers.BaseSampler:
        import optuna

        seed = self._sweep.rng("optuna", *stream).getrandbits(31)
        startup = self._sweep.search.optuna.n_startup_trials
        return optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)


def make_searcher(sweep: Sweep) -> Searcher:
    """Return the searcher of a sweep."""
    points = sweep.planned_points()
    return OptunaSearcher(sweep) if points is None else PlannedSearcher(points)


def require_sweep_extra(sweep: Sweep) -> None:
    """Raise UsageError where a sweep wants Optuna and it is not installed."""
    if sweep.searcher == "optuna" and importlib.util.find_spec("optuna") is None:
        raise UsageError("searcher optuna needs Optuna, which is not installed", "pip install 'rlexp[sweep]'")
