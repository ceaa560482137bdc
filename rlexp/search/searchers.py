"""Searchers: suggest the next configuration, and learn from the outcomes of tried ones.

There is a grid, random draws, and Optuna's samplers, which choose each point from the outcomes so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlexp.config.points import TriedPoints, identity
from rlexp.config.sweep import Point, Sweep
from rlexp.errors import ConfigError
from rlexp.search.optuna import make_sampler, parameters_of, require_sampler, suggested_point
from rlexp.search.shared_study import CONFIGURATION, SAME_AS, SharedStudy, StudyMember, direction_of, require_study
from rlexp.search.trial_source import Outcome, OutcomeStatus

if TYPE_CHECKING:
    import optuna


class Searcher:
    """Chooses points, one configuration after another. Searchers override what they need."""

    def suggest(self, configuration: int) -> Point | None:
        """Return the point of the next configuration; None when every point was tried."""
        return None

    def restore(self, configuration: int, point: Point) -> None:
        """Record that a point was suggested before the sweep was resumed; called in place of ``suggest``."""

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Record the outcome of a configuration."""

    def keep_alive(self) -> None:
        """Called a few times a minute while the sweep runs, as a study that others use must know that it does."""

    def drain_notes(self) -> list[str]:
        """Return the events since the last call that a user should know, a sentence each."""
        return []


class PlannedSearcher(Searcher):
    """``grid`` and ``random``: the points are known beforehand, and outcomes change nothing."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = deque(points)

    def suggest(self, configuration: int) -> Point | None:
        return self._points.popleft() if self._points else None

    def restore(self, configuration: int, point: Point) -> None:
        self.suggest(configuration)


def require_searcher(sweep: Sweep, folder: Path) -> None:
    """Raise UsageError or ConfigError if a sweep's searcher cannot begin; ``folder`` is for its storage."""
    require_sampler(sweep)
    require_study(sweep, folder)


def make_searcher(sweep: Sweep, member: StudyMember | None = None) -> Searcher:
    """Return the searcher of a sweep; ``member`` is the sweep's identity in a study's storage."""
    points = sweep.planned_points()
    return OptunaSearcher(sweep, member) if points is None else PlannedSearcher(points)


_MOST_REPETITIONS: Final = 10
"""Most repeated suggestions in a row; then a new point is drawn at random."""


class OptunaSearcher(Searcher):
    """``optuna``: a sampler of Optuna, seeded, which learns from the outcomes.

    No point is tried twice: a repeated suggestion gets the outcome that its point has, or will have. Without
    ``search.optuna.storage`` the study is in memory. The study of a resumed sweep has the same points and values, but
    not the state of the sampler's generator. Its next suggestions are as good, but not the same.
    """

    def __init__(self, sweep: Sweep, member: StudyMember | None = None) -> None:
        """Initialise; ``member`` is the sweep's identity in a study's storage."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._domains = sweep.space.domains
        self._sign = -1.0 if sweep.search.mode == "min" else 1.0
        self._tried = TriedPoints(self._domains)
        self._configurations: dict[str, int] = {}
        """The configuration of each point that this sweep tried, by the point's identity."""
        self._points: dict[int, Point] = {}
        self._numbers: dict[int, int] = {}
        """The number in the study of each configuration."""
        self._asked: dict[int, optuna.Trial | None] = {}
        """The configurations without an outcome; None if the study has it from before a resume."""
        self._repeated: dict[int, list[optuna.Trial]] = {}
        """Repeated suggestions of the points of these configurations."""
        self._outcomes: dict[int, Outcome] = {}
        self._notes: list[str] = []
        self._known: dict[int, optuna.trial.FrozenTrial] = {}
        """Configurations in the study from before a resume that were not restored."""
        self._others: dict[str, optuna.trial.FrozenTrial] = {}
        """Points that other sweeps of the study tried, by the point's identity."""
        self._shared: SharedStudy | None = None
        if sweep.search.optuna.storage is None:
            self._study = optuna.create_study(sampler=self._sampler(), direction=direction_of(sweep))
        else:
            assert member is not None
            self._join(member)

    def suggest(self, configuration: int) -> Point | None:
        for repetitions, (trial, point) in enumerate(self._suggestions(configuration)):
            if point not in self._tried:
                if repetitions:
                    points = "a point" if repetitions == 1 else f"{repetitions} points"
                    self._notes.append(f"Optuna suggested {points} again: nothing was run, the known outcome was used")
                return self._accept(configuration, trial, point)
            self._repeat(trial, point)
        return None

    def restore(self, configuration: int, point: Point) -> None:
        """Add a point as one that is being tried, if the study lacks it; raises KeyError for an unknown one."""
        known = self._known.pop(configuration, None)
        if self._shared is None:
            self._study.enqueue_trial(parameters_of(point, self._domains))
            trial: optuna.Trial | None = self._study.ask()  # gets the enqueued point
            assert trial is not None
            suggested_point(trial, self._domains)
        elif known is None:
            trial = self._shared.added(configuration, point)
        else:
            trial = None if known.state.is_finished() else self._shared.continued(known)
        self._register(configuration, point, trial, known.number if trial is None and known else None)
        # With the study's first seed, the next draws would repeat its first points.
        self._study.sampler = self._sampler("resumed", configuration + 1)

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Pass the outcome to the study; a failure as pruned before its first value, which ranks below any value.

        Optuna ignores failures and NaN: it would continue to suggest points that diverge.
        """
        self._outcomes[configuration] = outcome
        trial = self._asked.pop(configuration)
        if trial is not None and self._shared is not None and not self._shared.is_running(trial):
            trial = self._shared.added(configuration, self._points[configuration])
        for each in (trial, *self._repeated.pop(configuration, ())):
            if each is not None and (self._shared is None or self._shared.is_running(each)):
                self._tell(each, outcome)

    def drain_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def keep_alive(self) -> None:
        if self._shared is not None:
            self._shared.keep_alive()

    def _join(self, member: StudyMember) -> None:
        """Open the study in the storage, and find what this sweep tried before it was resumed."""
        self._shared = SharedStudy(self._sweep, member, self._sampler())
        self._study = self._shared.study
        if not self._shared.is_new:
            self._study.sampler = self._sampler("joined", member.id)
        configurations: dict[int, int] = {}
        for trial in self._shared.own():
            configuration = trial.user_attrs.get(CONFIGURATION)
            if configuration is None and not trial.state.is_finished():
                self._shared.fail(trial)  # a kill came before it had a point
            if configuration is None or trial.state.name == "FAIL":
                continue
            if SAME_AS not in trial.user_attrs:
                self._known[configuration] = trial
                configurations[trial.number] = configuration
            elif not trial.state.is_finished():
                known = configurations[trial.user_attrs[SAME_AS]]
                self._repeated.setdefault(known, []).append(self._shared.continued(trial))

    def _suggestions(self, configuration: int) -> Iterator[tuple[optuna.Trial, Point]]:
        """Yield trials of the study: one that was asked for before a kill, the sampler's, then random new points."""
        if self._shared is not None:
            for point, other in self._shared.others():
                self._tried.add(point)
                self._others[identity(point)] = other
            known = self._known.pop(configuration, None)
            if known is not None and not known.state.is_finished():
                trial = self._shared.continued(known)
                yield trial, suggested_point(trial, self._domains)
        for _ in range(_MOST_REPETITIONS):
            yield self._ask(configuration)
        rng = self._sweep.rng("new point", configuration)
        while (new := self._tried.new(rng, {})) is not None:
            self._study.enqueue_trial(parameters_of(new, self._domains))
            yield self._ask(configuration)

    def _ask(self, configuration: int) -> tuple[optuna.Trial, Point]:
        while True:
            trial = self._study.ask()
            if self._shared is not None:
                self._shared.begin(trial, configuration)
            try:
                return trial, suggested_point(trial, self._domains)
            except ValueError:
                if self._shared is None or not self._shared.is_enqueued(trial):
                    raise
                self._shared.refuse(trial)

    def _accept(self, configuration: int, trial: optuna.Trial, point: Point) -> Point:
        self._register(configuration, point, trial)
        if self._shared is not None:
            try:
                self._shared.describe(trial, self._sweep.trials(configuration, point))
            except ConfigError:  # the search also refuses it
                return point
        return point

    def _register(
        self, configuration: int, point: Point, trial: optuna.Trial | None, number: int | None = None
    ) -> None:
        self._tried.add(point)
        self._configurations[identity(point)] = configuration
        self._points[configuration] = point
        self._numbers[configuration] = trial.number if trial is not None else number or 0
        self._asked[configuration] = trial

    def _repeat(self, trial: optuna.Trial, point: Point) -> None:
        """Give a suggestion the outcome of its point, at once or when there is one."""
        configuration = self._configurations.get(identity(point))
        if configuration is None:
            assert self._shared is not None
            self._shared.copy(self._others[identity(point)], trial)
            return
        if self._shared is not None:
            self._shared.repeat(trial, self._numbers[configuration])
        if configuration in self._outcomes:
            self._tell(trial, self._outcomes[configuration])
        else:
            self._repeated.setdefault(configuration, []).append(trial)

    def _tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        from optuna.trial import TrialState

        if outcome.status is OutcomeStatus.FINISHED and outcome.value is not None:
            self._study.tell(trial, self._sign * outcome.value)
            return
        if outcome.status is OutcomeStatus.PRUNED and outcome.value is not None:
            trial.report(self._sign * outcome.value, int(outcome.time))
        if outcome.status is OutcomeStatus.FAILED and self._shared is not None:
            self._shared.describe_failure(trial)
        self._study.tell(trial, state=TrialState.PRUNED)

    def _sampler(self, *stream: str | int) -> optuna.samplers.BaseSampler:
        options = self._sweep.search.optuna
        if options.sampler == "qmc":  # its places in the sequence are counted in the study, for one seed
            stream = ()
        return make_sampler(options, self._sweep.rng("optuna", *stream).getrandbits(31))
