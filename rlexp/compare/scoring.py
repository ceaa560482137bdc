"""How compared trials are scored: over the last tenth that all completed ones have, or as their sweep scored them.

Those without such a score, which ended too early or failed, have their value where they ended instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from rlexp.compare.axis import CurveAxis, amount, unit_of
from rlexp.compare.curve import Curve
from rlexp.compare.group import Group
from rlexp.compare.run_listing import TrialFolder
from rlexp.compare.sweep import SweepRanking, read_sweep_ranking
from rlexp.errors import UsageError
from rlexp.metrics import FINAL_SHARE, final_score
from rlexp.runs.record import Status
from rlexp.search.ranking import RULE, SCORE_RULE
from rlexp.text import MISSING, one_line, score_at

Curves = Mapping[TrialFolder, Curve]

_NONE_COMPLETED: Final = "No configuration has completed. Groups are in the order of the sweep's ranking."
_OF_THE_RANKING: Final = "Groups are in the order of the sweep's ranking by {metric}, not of these scores."
_NOT_THE_RANKING: Final = "Groups are ordered by these scores; the sweep's ranking is by all steps: trials.csv."


@dataclass(frozen=True)
class Window:
    """The part of trials where scores are taken: from ``start``, not counted, to ``end``, counted."""

    start: float
    end: float


class Scoring(Protocol):
    """Scores the trials of a comparison, and orders its groups."""

    @property
    def window(self) -> Window | None:
        """Where final scores are taken; None where a sweep has scored its trials."""

    @property
    def rule(self) -> str:
        """How trials are scored and groups ordered, in sentences."""

    @property
    def lower_is_better(self) -> bool:
        """Whether less of the metric is better."""

    @property
    def ranking(self) -> SweepRanking | None:
        """The ranking of the only sweep that is compared, if its metric is."""

    def score(self, trial: TrialFolder) -> float | None:
        """Return a trial's final score; None where it failed, or ended before the others have theirs."""

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups in the order in which they are shown; the others are compared with the first."""


@dataclass(frozen=True)
class FinalWindow:
    """The mean over a window that the scored trials have."""

    window: Window
    curves: Curves
    axis: CurveAxis
    is_failure_scored: bool
    """Whether trials that failed are scored too, if they have the window."""
    span: str
    """What the window is, as a part of a sentence."""
    order: str = ""
    """How groups are ordered, in a sentence, if not as they were given."""
    key: Callable[[FinalWindow, Group], float] | None = None
    """What orders groups, the lowest first; None: as they were given."""
    lower_is_better: bool = False
    ranking: SweepRanking | None = None
    scored: Collection[TrialFolder] | None = None
    """The trials that are scored if they have the window; None: all."""

    @property
    def rule(self) -> str:
        unit = unit_of(self.axis, self.window.end)
        start, end = (amount(x / unit.size, self.axis) for x in (self.window.start, self.window.end))
        return f"Scores are means over {unit.label} {start} to {end}, {self.span}. {self.order}".rstrip()

    def score(self, trial: TrialFolder) -> float | None:
        curve = self.curves[trial]
        if not len(curve.values) or (failed(trial) and not self.is_failure_scored):
            return None
        if self.scored is not None and trial not in self.scored:
            return None
        x = curve.along(self.axis)
        return final_score(x, curve.values, self.window.start, self.window.end) if x[-1] >= self.window.end else None

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        key = self.key
        return list(groups) if key is None else sorted(groups, key=lambda group: key(self, group))


@dataclass(frozen=True)
class SweepScoring:
    """The scores and the order of the ranking in ``sweep.json``; configurations that have not completed have none."""

    ranking: SweepRanking

    @property
    def window(self) -> Window | None:
        return None

    @property
    def rule(self) -> str:
        return f"{SCORE_RULE.format(metric=self.ranking.metric)} {RULE}"

    @property
    def lower_is_better(self) -> bool:
        return self.ranking.lower_is_better

    def score(self, trial: TrialFolder) -> float | None:
        return self.ranking.scores.get(trial.name)

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        return sorted(groups, key=self.ranking.rank)


@dataclass(frozen=True)
class ScoreRequest:
    """What is compared, and where."""

    arguments: Sequence[str]
    metric: str
    axis: CurveAxis
    at: float | None
    """Scores are taken before so many env steps or seconds; None: at the end of completed trials."""


def scoring_of(request: ScoreRequest, groups: Sequence[Group], curves: Curves) -> Scoring:
    """Return the scoring of the only sweep that is compared, by its own metric and steps; else by a window.

    Raises UsageError where no trial reaches the end of the window that was asked for.
    """
    trials = [trial for group in groups for trial in group.trials if len(curves[trial].values)]
    ranking = read_sweep_ranking(Path(request.arguments[0])) if len(request.arguments) == 1 else None
    by_metric = ranking is not None and ranking.metric == request.metric
    if ranking is not None and by_metric and request.axis is CurveAxis.STEPS and request.at is None:
        scoring = SweepScoring(ranking)
        if any(scoring.score(trial) is not None for trial in trials):
            return scoring
        return _without_completed(ranking, trials, curves)
    window = _window_at(request, trials, curves) if request.at is not None else _final(request.axis, trials, curves)
    if ranking is None:
        return window
    if not by_metric:
        return replace(window, key=_rank, order=_OF_THE_RANKING.format(metric=ranking.metric), ranking=ranking)
    window = replace(window, lower_is_better=ranking.lower_is_better, ranking=ranking)
    return replace(window, key=_signed_mean, order=_NOT_THE_RANKING)


def failed(trial: TrialFolder) -> bool:
    """Whether a trial has ended with an error."""
    return trial.record is not None and trial.record.status is Status.ERROR


def _final(axis: CurveAxis, trials: Sequence[TrialFolder], curves: Curves) -> FinalWindow:
    """Return the last tenth of what all completed trials have; before one has completed, of what all have."""
    choices = [
        [trial for trial in trials if trial.record is None or trial.record.status is Status.TERMINATED],
        [trial for trial in trials if not failed(trial)],
        list(trials),
    ]
    compared = next(choice for choice in choices if choice)
    window = final_window([curves[trial] for trial in compared], axis)
    which = "" if len(compared) == len(trials) else "completed " if compared is choices[0] else "other "
    whose = "of the trial" if len(compared) == 1 else f"that all {len(compared)} {which}trials have"
    return FinalWindow(window, curves, axis, all(map(failed, trials)), f"the last tenth {whose}")


def _without_completed(ranking: SweepRanking, trials: Sequence[TrialFolder], curves: Curves) -> FinalWindow:
    """Return the last tenth of what all trials of the first tier have, of a sweep with no score: others rank below."""
    scored = ranking.first_tier(trials)
    return FinalWindow(
        window=final_window([curves[trial] for trial in scored], CurveAxis.STEPS),
        curves=curves,
        axis=CurveAxis.STEPS,
        is_failure_scored=True,
        span="the last tenth that all trials of these groups have",
        order=_NONE_COMPLETED,
        key=_rank,
        lower_is_better=ranking.lower_is_better,
        ranking=ranking,
        scored=frozenset(scored),
    )


def _window_at(request: ScoreRequest, trials: Sequence[TrialFolder], curves: Curves) -> FinalWindow:
    assert request.at is not None
    longest = max(float(curves[trial].along(request.axis)[-1]) for trial in trials)
    if longest < request.at:
        unit = request.axis.label
        message = f"no trial has {request.at:,.10g} {unit}: the longest has {longest:,.10g}"
        raise UsageError(message, f"--at {longest:.10g} compares that one alone; use less")
    window = Window(request.at * (1 - FINAL_SHARE), request.at)
    return FinalWindow(window, curves, request.axis, True, "the last tenth before --at")


def final_window(curves: Sequence[Curve], axis: CurveAxis) -> Window:
    """Return the last tenth of the steps or seconds that every curve has: the shortest curve ends it."""
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    return Window(end * (1 - FINAL_SHARE), end)


def _rank(window: FinalWindow, group: Group) -> float:
    assert window.ranking is not None
    return window.ranking.rank(group)


def _signed_mean(window: FinalWindow, group: Group) -> float:
    mean = float(np.mean([window.score(trial) for trial in group.trials]))
    return mean if window.lower_is_better else -mean


_UNITS: Final = {
    "timesteps_total": CurveAxis.STEPS.label,
    "training_iteration": "iterations",
    "time_total_s": "seconds",
}
_WORST_FIRST: Final = (Status.ERROR, Status.RUNNING, Status.PENDING, Status.STOPPED, Status.PRUNED)


@dataclass(frozen=True)
class UnscoredGroup:
    """Trials of a group that have no score."""

    name: str
    trials: tuple[TrialFolder, ...]
    num_trials: int
    """Of the whole group."""
    status: Status | None
    """The worst of its trials; None where no ``run.json`` says it."""
    error: str | None
    """Why one of them failed."""
    at: float | None
    """How far all of them came; None where one has no value."""
    of: float | None
    """The ``stop`` in the same unit, where it is known."""
    unit: str
    """Of ``at``: ``env steps``, ``iterations`` or ``seconds``."""
    value: float | None
    """The mean of the metric over these trials there."""
    first_value: float | None
    """That of the first group of the comparison there; None where it has none."""

    @property
    def where(self) -> str:
        """The value and where it was reached: ``40 @ 100 of 1,000``."""
        if self.at is None or self.value is None:
            return MISSING
        return score_at(self.value, self.at, self.of, "" if self.unit == CurveAxis.STEPS.label else self.unit)

    @property
    def status_words(self) -> str:
        """Its status, and how many trials of the group it is."""
        status = "unknown" if self.status is None else str(self.status)
        part = "" if len(self.trials) == self.num_trials else f" ({len(self.trials)} of {self.num_trials} trials)"
        return f"{status}{part}"

    @property
    def why(self) -> str:
        """Its status, how many trials of the group it is, and the error if it failed."""
        return self.status_words + ("" if self.error is None else f": {one_line(self.error)}")


def unscored_groups(
    groups: Sequence[Group], scored: Sequence[Group], curves: Curves, axis: CurveAxis, scoring: Scoring
) -> list[UnscoredGroup]:
    """Return what has no score: as its sweep ranks it; else by how far it came and its value there; failed ones last.

    ``scored`` are the groups of the comparison in their order, with the trials that have scores.
    """
    first = [curves[trial] for trial in scored[0].trials] if scored else []
    left = [Group(group.name, tuple(_left(group, scoring))) for group in groups]
    sizes = {group.name: len(group.trials) for group in groups}
    found = [_unscored(group, sizes[group.name], curves, axis, first, scoring) for group in left if group.trials]
    ranking = scoring.ranking
    if ranking is not None:
        return sorted(found, key=lambda each: ranking.rank(Group(each.name, each.trials)))
    return sorted(
        found,
        key=lambda each: (
            each.status is Status.ERROR,
            -(each.at if each.at is not None else -math.inf),
            -(each.value or 0.0),
        ),
    )


def _left(group: Group, scoring: Scoring) -> Iterator[TrialFolder]:
    return (trial for trial in group.trials if scoring.score(trial) is None)


def _unscored(
    group: Group, size: int, curves: Curves, axis: CurveAxis, first: Sequence[Curve], scoring: Scoring
) -> UnscoredGroup:
    statuses = {trial.record.status for trial in group.trials if trial.record}
    status = next((each for each in (*_WORST_FIRST, Status.TERMINATED) if each in statuses), None)
    errors = [trial.record.error for trial in group.trials if trial.record and failed(trial)]
    error = next((each.summary for each in errors if each is not None), None)
    end = scoring.ranking.end(group) if scoring.ranking is not None and scoring.window is None else None
    if end is not None:
        place = end.at, end.of, _UNITS.get(end.unit, end.unit), end.value, end.rank_1_value
        return UnscoredGroup(group.name, group.trials, size, status, error, *place)
    own = [curves[trial] for trial in group.trials]
    at = min((float(curve.along(axis)[-1]) if len(curve.values) else math.nan for curve in own), default=math.nan)
    if any(not len(curve.values) for curve in own):
        return UnscoredGroup(group.name, group.trials, size, status, error, None, None, axis.label, None, None)
    values = _mean_at(own, axis, at), _mean_at(first, axis, at)
    return UnscoredGroup(group.name, group.trials, size, status, error, at, None, axis.label, *values)


def _mean_at(curves: Sequence[Curve], axis: CurveAxis, at: float) -> float | None:
    """Return the mean of the curves at a place, interpolated; None where one of them has no value there."""
    x = [curve.along(axis) for curve in curves]
    if not curves or any(not each[0] <= at <= each[-1] for each in x):
        return None
    return float(np.mean([np.interp(at, each, curve.values) for each, curve in zip(x, curves, strict=True)]))
