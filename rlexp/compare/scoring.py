"""The scores of compared trials: over the last tenth that all completed ones have, or from their sweep.

Trials without such a score, which ended too early or failed, have their value at their end instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlexp.compare.curve import Curve, CurveAxis, amount, unit_of
from rlexp.compare.group import Group
from rlexp.compare.run_listing import TrialFolder
from rlexp.compare.sweep import SweepResults
from rlexp.config.keys.search import TimeAttribute
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


@dataclass(frozen=True)
class Scoring:
    """The scores of the trials of a comparison, and the order of its groups."""

    scores: Mapping[TrialFolder, float]
    """The final scores, without trials that failed or ended before the scores are taken."""
    rule: str
    """How trials are scored and groups ordered, in sentences."""
    window: Window | None
    """The part for final scores; None if a sweep has scored its trials."""
    sweep: SweepResults | None = None
    """The only sweep that is compared."""
    lower_is_better: bool = False
    """Whether less of the metric is better."""
    key: Callable[[Group], float] | None = None
    """The sort key of groups, the lowest first; None: the given order. The first is the one that others are compared
    with."""


@dataclass(frozen=True)
class ScoreRequest:
    """The request of a comparison: trials, metric, and where scores are taken."""

    metric: str
    axis: CurveAxis
    at: float | None
    """Scores are taken before so many env steps or seconds; None: at the end of completed trials."""
    sweep: SweepResults | None
    """The only sweep that is compared."""


def scoring_of(request: ScoreRequest, groups: Sequence[Group], curves: Curves) -> Scoring:
    """Return the scores of the only compared sweep, by its own metric and steps; else scores over a window.

    Raises UsageError if no trial reaches the end of the requested window.
    """
    trials = [trial for group in groups for trial in group.trials if len(curves[trial].values)]
    sweep = request.sweep
    by_metric = sweep is not None and sweep.metric == request.metric
    if sweep is not None and by_metric and request.axis is CurveAxis.STEPS and request.at is None:
        return _of_sweep(sweep, trials, curves)
    scoring = (_final if request.at is None else _before)(request, trials, curves)
    if sweep is None:
        return scoring
    if not by_metric:
        return _ordered(scoring, _OF_THE_RANKING.format(metric=sweep.metric), sweep, sweep.rank)
    sign = 1 if sweep.lower_is_better else -1

    def signed_mean(group: Group) -> float:
        return sign * float(np.mean([scoring.scores[trial] for trial in group.trials]))

    return replace(_ordered(scoring, _NOT_THE_RANKING, sweep, signed_mean), lower_is_better=sweep.lower_is_better)


def failed(trial: TrialFolder) -> bool:
    """Whether a trial has ended with an error."""
    return trial.record is not None and trial.record.status is Status.ERROR


def _of_sweep(sweep: SweepResults, trials: Sequence[TrialFolder], curves: Curves) -> Scoring:
    """Return the scores and the order in ``sweep.json``; configurations that have not completed have no score.

    If none has completed, scores are over the last tenth that all trials of the first tier have, as others rank below.
    """
    scores = {trial: score for trial in trials if (score := sweep.score(trial)) is not None}
    if scores:
        scoring = Scoring(scores, SCORE_RULE.format(metric=sweep.metric), None)
        return replace(_ordered(scoring, RULE, sweep, sweep.rank), lower_is_better=sweep.lower_is_better)
    first = sweep.first_tier(trials)
    window = _final_window([curves[trial] for trial in first], CurveAxis.STEPS)
    span = "the last tenth that all trials of these groups have"
    scoring = _over(window, span, first, curves, CurveAxis.STEPS)
    return replace(_ordered(scoring, _NONE_COMPLETED, sweep, sweep.rank), lower_is_better=sweep.lower_is_better)


def _final(request: ScoreRequest, trials: Sequence[TrialFolder], curves: Curves) -> Scoring:
    """Return the last tenth of what all completed trials have; before one has completed, of what all have."""
    not_failed = [trial for trial in trials if not failed(trial)]
    choices = [
        [trial for trial in trials if trial.record is None or trial.record.status is Status.TERMINATED],
        not_failed,
        list(trials),
    ]
    compared = next(choice for choice in choices if choice)
    window = _final_window([curves[trial] for trial in compared], request.axis)
    which = "" if len(compared) == len(trials) else "completed " if compared is choices[0] else "other "
    whose = "of the trial" if len(compared) == 1 else f"that all {len(compared)} {which}trials have"
    return _over(window, f"the last tenth {whose}", not_failed or trials, curves, request.axis)


def _before(request: ScoreRequest, trials: Sequence[TrialFolder], curves: Curves) -> Scoring:
    """Return the last tenth before ``--at``, of all trials that have it."""
    assert request.at is not None
    longest = max(float(curves[trial].along(request.axis)[-1]) for trial in trials)
    if longest < request.at:
        unit = request.axis.label
        message = f"no trial has {request.at:,.10g} {unit}: the longest has {longest:,.10g}"
        raise UsageError(message, f"--at {longest:.10g} compares that one alone; use less")
    window = Window(request.at * (1 - FINAL_SHARE), request.at)
    return _over(window, "the last tenth before --at", trials, curves, request.axis)


def _over(window: Window, span: str, trials: Sequence[TrialFolder], curves: Curves, axis: CurveAxis) -> Scoring:
    """Return the means over a window, ``span`` in words, of the trials that have it."""
    unit = unit_of(axis, window.end)
    start, end = (amount(x / unit.size, axis) for x in (window.start, window.end))
    along = {trial: curves[trial].along(axis) for trial in trials}
    scores = {
        trial: final_score(x, curves[trial].values, window.start, window.end)
        for trial, x in along.items()
        if x[-1] >= window.end
    }
    return Scoring(scores, f"Scores are means over {unit.label} {start} to {end}, {span}.", window)


def _ordered(scoring: Scoring, order: str, sweep: SweepResults, key: Callable[[Group], float]) -> Scoring:
    """Return the scoring of a sweep, with its groups in the ``order`` that a sentence says and ``key`` gives."""
    return replace(scoring, rule=f"{scoring.rule} {order}", sweep=sweep, key=key)


def _final_window(curves: Sequence[Curve], axis: CurveAxis) -> Window:
    """Return the last tenth of the steps or seconds that every curve has: the shortest curve ends it."""
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    return Window(end * (1 - FINAL_SHARE), end)


_UNITS: Final[Mapping[TimeAttribute, str]] = {
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
    """Number of trials of the whole group."""
    status: Status | None
    """The worst status of its trials; None if no ``run.json`` has one."""
    error: str | None
    """Why one of them failed."""
    at: float | None
    """How far all of them came; None if one has no value."""
    of: float | None
    """The ``stop`` in the same unit, if it is known."""
    unit: str
    """Unit of ``at``: ``env steps``, ``iterations`` or ``seconds``."""
    value: float | None
    """Mean of the metric over these trials at that time."""
    first_value: float | None
    """Value of the comparison's first group at that time; None if it has none."""

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
    """Return the trials without a score: as their sweep ranks them; else by progress, then value; failed ones last.

    ``scored`` are the groups of the comparison in their order, with the trials that have scores.
    """
    first = [curves[trial] for trial in scored[0].trials] if scored else []
    left = [Group(group.name, tuple(each for each in group.trials if each not in scoring.scores)) for group in groups]
    sizes = {group.name: len(group.trials) for group in groups}
    found = [_unscored(group, sizes[group.name], curves, axis, first, scoring) for group in left if group.trials]
    sweep = scoring.sweep
    if sweep is not None:
        return sorted(found, key=lambda each: sweep.rank(Group(each.name, each.trials)))
    furthest = {each.name: -math.inf if each.at is None else each.at for each in found}
    return sorted(found, key=lambda each: (each.status is Status.ERROR, -furthest[each.name], -(each.value or 0.0)))


def _unscored(
    group: Group, size: int, curves: Curves, axis: CurveAxis, first: Sequence[Curve], scoring: Scoring
) -> UnscoredGroup:
    statuses = {trial.record.status for trial in group.trials if trial.record}
    status = next((each for each in (*_WORST_FIRST, Status.TERMINATED) if each in statuses), None)
    errors = [trial.record.error for trial in group.trials if trial.record and failed(trial)]
    error = next((each.summary for each in errors if each is not None), None)
    end = scoring.sweep.end(group) if scoring.sweep is not None and scoring.window is None else None
    own = [curves[trial] for trial in group.trials]
    place: tuple[float | None, float | None, str, float | None, float | None]
    if end is not None:
        place = end.at, end.of, _UNITS[end.unit], end.value, end.rank_1_value
    elif all(len(curve.values) for curve in own):
        at = min(float(curve.along(axis)[-1]) for curve in own)
        place = at, None, axis.label, _mean_at(own, axis, at), _mean_at(first, axis, at)
    else:
        place = None, None, axis.label, None, None
    return UnscoredGroup(group.name, group.trials, size, status, error, *place)


def _mean_at(curves: Sequence[Curve], axis: CurveAxis, at: float) -> float | None:
    """Return the mean of the curves at a place, interpolated; None if one of them has no value there."""
    x = [curve.along(axis) for curve in curves]
    if not curves or any(not each[0] <= at <= each[-1] for each in x):
        return None
    return float(np.mean([np.interp(at, each, curve.values) for each, curve in zip(x, curves, strict=True)]))
