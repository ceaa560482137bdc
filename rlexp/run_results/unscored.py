"""What a comparison shows below its scores: trials that ended too early or failed, and their value there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.run_results.axis import Axis
from rlexp.run_results.curve import Curve
from rlexp.run_results.group import Group
from rlexp.run_results.scoring import Curves, Scoring, failed
from rlexp.run_results.trial_folder import TrialFolder
from rlexp.runs.record import Status
from rlexp.text import MISSING, one_line, score_at

_UNITS: Final = {"timesteps_total": Axis.STEPS.label, "training_iteration": "iterations", "time_total_s": "seconds"}
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
        return score_at(self.value, self.at, self.of, "" if self.unit == Axis.STEPS.label else self.unit)

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
    groups: Sequence[Group], scored: Sequence[Group], curves: Curves, axis: Axis, scoring: Scoring
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
    group: Group, size: int, curves: Curves, axis: Axis, first: Sequence[Curve], scoring: Scoring
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


def _mean_at(curves: Sequence[Curve], axis: Axis, at: float) -> float | None:
    """Return the mean of the curves at a place, interpolated; None where one of them has no value there."""
    x = [curve.along(axis) for curve in curves]
    if not curves or any(not each[0] <= at <= each[-1] for each in x):
        return None
    return float(np.mean([np.interp(at, each, curve.values) for each, curve in zip(x, curves, strict=True)]))
