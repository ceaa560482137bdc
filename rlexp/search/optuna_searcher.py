"""OptunaSearcher: a searcher that lets a sampler of Optuna choose each point from the outcomes so far."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from rlexp.config.space.distinct import identity
from rlexp.config.variants.sweep import Point, Sweep
from rlexp.config.variants.tried_points import TriedPoints
from rlexp.errors import UsageError
from rlexp.search.optuna_space import parameters_of, suggested_point
from rlexp.search.outcome import Outcome, OutcomeStatus

if TYPE_CHECKING:
    import optuna


_MOST_REPETITIONS: Final = 10
"""Suggestions in a row that were tried before; then a new point is drawn at random."""


class OptunaSearcher:
    """``optuna``: tree-structured Parzen estimators, seeded; points being tried count as bad ones meanwhile.

    No point is tried twice: one that is suggested again gets the outcome that it has, or will have. The study is in
    memory. That of a resumed sweep has the same points and values, but not the state of the sampler's generator: what
    it suggests next is as good as what would have come, and not the same.
    """

    def __init__(self, sweep: Sweep) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._study = optuna.create_study(sampler=self._sampler(), direction="maximize")
        self._tried = TriedPoints(sweep.space.domains)
        self._numbers: dict[str, int] = {}
        """The configuration of each point that was tried, by the point's identity."""
        self._asked: dict[int, optuna.Trial] = {}
        """The configurations without an outcome."""
        self._repeated: dict[int, list[optuna.Trial]] = {}
        """Suggestions of the points of those, from after the first one."""
        self._outcomes: dict[int, Outcome] = {}
        self._notes: list[str] = []

    def suggest(self, configuration: int) -> Point | None:
        repetitions = 0
        while True:
            if repetitions >= _MOST_REPETITIONS:
                point = self._tried.new(self._sweep.rng("new point", configuration), {})
                if point is None:
                    return None
                self._study.enqueue_trial(parameters_of(self._sweep.space, point))
            trial, point = self._ask()
            if point not in self._tried:
                break
            self._repeat(trial, point)
            repetitions += 1
        if repetitions:
            times = "a point that was tried before" if repetitions == 1 else f"{repetitions} points again"
            self._notes.append(f"Optuna suggested {times}: nothing was run, and the known outcome was used")
        return self._accept(configuration, trial, point)

    def restore(self, configuration: int, point: Point) -> None:
        """Add a point to the study as one that is being tried; raises KeyError or ValueError where it does not fit."""
        self._study.enqueue_trial(parameters_of(self._sweep.space, point))
        self._accept(configuration, *self._ask())  # gets the point that was enqueued
        # With the first seed of the study, the next draws would repeat its first points.
        self._study.sampler = self._sampler("resumed", configuration + 1)

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Pass the outcome to the study; a failure as pruned before its first value, which is worse than any value.

        Optuna ignores failures and NaN: it would continue to suggest points that diverge.
        """
        self._outcomes[configuration] = outcome
        for trial in (self._asked.pop(configuration), *self._repeated.pop(configuration, ())):
            self._tell(trial, outcome)

    def drain_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def _ask(self) -> tuple[optuna.Trial, Point]:
        trial = self._study.ask()
        return trial, suggested_point(trial, self._sweep.space)

    def _accept(self, configuration: int, trial: optuna.Trial, point: Point) -> Point:
        self._tried.add(point)
        self._numbers[identity(point)] = configuration
        self._asked[configuration] = trial
        return point

    def _repeat(self, trial: optuna.Trial, point: Point) -> None:
        """Give a suggestion the outcome of its point, at once or when there is one."""
        configuration = self._numbers[identity(point)]
        if configuration in self._outcomes:
            self._tell(trial, self._outcomes[configuration])
        else:
            self._repeated.setdefault(configuration, []).append(trial)

    def _tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        from optuna.trial import TrialState

        if outcome.status is OutcomeStatus.FINISHED and outcome.value is not None:
            self._study.tell(trial, outcome.value)
            return
        if outcome.status is OutcomeStatus.PRUNED and outcome.value is not None:
            trial.report(outcome.value, int(outcome.time))
        self._study.tell(trial, state=TrialState.PRUNED)

    def _sampler(self, *stream: str | int) -> optuna.samplers.BaseSampler:
        import optuna

        seed = self._sweep.rng("optuna", *stream).getrandbits(31)
        startup = self._sweep.search.optuna.n_startup_trials
        return optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)


def require_sweep_extra(sweep: Sweep) -> None:
    """Raise UsageError where a sweep wants Optuna and it is not installed."""
    if sweep.searcher == "optuna" and importlib.util.find_spec("optuna") is None:
        raise UsageError("searcher optuna needs Optuna, which is not installed", "pip install 'rlexp[sweep]'")
