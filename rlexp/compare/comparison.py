"""Comparison: the scores of groups over their seeds with intervals, and notices of what limits its conclusions.

``terminal`` and ``report`` show the comparison.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import numpy as np

from rlexp.compare.curve import Band, Curve, CurveAxis, ReachedScore, amount, band, reached, read_curve, read_rows
from rlexp.compare.group import Group, Settings, SettingsReader, differing, groups_of, shared_settings
from rlexp.compare.importance import Importance, importance_of
from rlexp.compare.run_listing import TrialFolder, number, unread_rows
from rlexp.compare.scoring import (
    Curves,
    ScoreRequest,
    Scoring,
    UnscoredGroup,
    Window,
    failed,
    scoring_of,
    unscored_groups,
)
from rlexp.compare.sweep import SweepResults, read_sweep_results, without_confirmation
from rlexp.config.keys.metrics import current_metric
from rlexp.config.reference.hints import metric_meant
from rlexp.errors import Notice, UsageError
from rlexp.metrics import Estimate, improvement_probability, interquartile_mean_of
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.rows import flatten
from rlexp.sample_batch import Array
from rlexp.text import digits_for

_SEED: Final = 0
"""Seed of every bootstrap: the same results give the same intervals."""
_MARKS: Final = string.ascii_uppercase + string.ascii_lowercase
_NAMES_SHOWN: Final = 6
_IF_UNREAD: Final = "put back a copy; rlexp logs still shows the event files of trials whose folder is there"
_LONGEST_NAMES: Final = 60


@dataclass(frozen=True)
class ComparedTrial:
    """One seed of a group."""

    folder: TrialFolder
    curve: Curve
    score: float
    """Its final score."""
    reached: ReachedScore | None
    """When it reached the goal; None without a goal."""


@dataclass(frozen=True)
class GoalReached:
    """How soon the seeds of a group reached the goal; a seed that never did counts as infinite."""

    seeds: int
    """Number of seeds that reached it."""
    median_steps: float
    median_seconds: float


@dataclass(frozen=True, eq=False)
class ComparedGroup:
    """A group and its scores over all seeds."""

    mark: str
    """Its letter in plots."""
    name: str
    trials: tuple[ComparedTrial, ...]
    mean: float
    """Mean of the final scores; ``iqm`` is their interquartile mean."""
    iqm: Estimate
    improvement: Estimate | None
    """The probability that a trial here is better than one of the first group. None for the first group, with a single
    seed in one of the two, or if they share no environment."""
    band: Band
    goal: GoalReached | None
    """How soon the seeds reached the goal; None without a goal."""
    settings: Settings
    """Settings of its trials; if these differ, all of their values."""

    @property
    def label(self) -> str:
        """Its name, with its agent unless the name has it: for the legend of a picture."""
        agent = self.settings.get("run", "").strip('"')
        return self.name if agent.lower() in self.name.lower() else f"{self.name} ({agent})"

    def band_along(self, axis: CurveAxis) -> Band:
        """Return its curve along env steps or time."""
        return band([trial.curve for trial in self.trials], axis, np.random.default_rng(_SEED))


@dataclass(frozen=True)
class Comparison:
    """The result of ``rlexp compare``."""

    metric: str
    axis: CurveAxis
    goal: float | None
    window: Window | None
    """The part of the axis for final scores; None if a sweep has scored the trials."""
    scoring: str
    """How trials are scored, in a sentence."""
    lower_is_better: bool
    groups: tuple[ComparedGroup, ...]
    ended_early: tuple[UnscoredGroup, ...]
    """Trials that ended before the scores are taken, or failed; shown below the groups."""
    differences: tuple[str, ...]
    """The settings that are not the same in all groups."""
    notices: tuple[Notice, ...]
    sweep: SweepResults | None = None
    """The sweep, if one is compared alone."""
    importance: Importance | None = None
    """Importance of the keys of that sweep."""

    @property
    def title(self) -> str:
        """Return the title: the name of the only run, or the groups' names if these are short; and the envs."""
        runs = {trial.folder.run.path.resolve().name for group in self.groups for trial in group.trials}
        names = ", ".join(group.name for group in self.groups)
        groups = names if len(names) <= _LONGEST_NAMES else f"{len(self.groups)} groups"
        return f"{runs.pop() if len(runs) == 1 else groups} on {', '.join(self.envs)}"

    @property
    def num_trials(self) -> int:
        """Number of compared trials, of all groups."""
        return sum(len(group.trials) for group in self.groups)

    @property
    def budget(self) -> str | None:
        """The budget for which its order is an answer, in a sentence; None for a single group."""
        if len(self.groups) == 1:
            return None
        first = [float(trial.curve.along(self.axis)[-1]) for trial in self.groups[0].trials]
        end = max(first) if self.window is None else self.window.end
        return (
            f"This order is for a budget of {amount(end, self.axis)} {self.axis.label}: "
            "with more, another group may be best."
        )

    @property
    def what_curves_show(self) -> str:
        """What the curves are made of: the seeds, and an interval if any group has several."""
        sizes = sorted({len(group.trials) for group in self.groups})
        if sizes == [1]:
            return (
                "one seed, so without an interval" if len(self.groups) == 1 else "one seed each, so without intervals"
            )
        number = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"IQM over {number} seeds with pointwise 95 % intervals"

    @property
    def digits(self) -> int:
        """The number of decimals with which its scores are shown."""
        return digits_for(max(abs(trial.score) for group in self.groups for trial in group.trials))

    @property
    def envs(self) -> tuple[str, ...]:
        """The envs of its trials, in the order of the groups."""
        return tuple(dict.fromkeys(trial.folder.env for group in self.groups for trial in group.trials))


def compare_groups(
    arguments: Sequence[str], metric: str, axis: CurveAxis, goal: float | None, at: float | None = None
) -> Comparison:
    """Compare the groups of ``arguments`` (see ``groups_of``); raises UsageError if nothing can be compared.

    ``at``: scores are taken before so many env steps or seconds, and not at the end of completed trials.
    """
    reader = SettingsReader()
    left_out: list[Notice] = []
    groups, metric = groups_of(arguments, reader, left_out.append), current_metric(metric)
    if len(arguments) == 1:
        groups, confirmation = without_confirmation(groups, Path(arguments[0]))
        left_out.extend(confirmation)
    curves = {trial: read_curve(trial.path, metric) for group in groups for trial in group.trials}
    _refuse_without_rows(groups, curves, metric)
    sweep = read_sweep_results(Path(arguments[0])) if len(arguments) == 1 else None
    request = ScoreRequest(metric, axis, at, sweep)
    scoring = scoring_of(request, groups, curves)
    kept = (Group(group.name, tuple(each for each in group.trials if each in scoring.scores)) for group in groups)
    scored = [group for group in kept if group.trials]
    if scoring.key is not None:
        scored.sort(key=scoring.key)
    compared: list[ComparedGroup] = []
    for index, group in enumerate(scored):
        trials = [
            ComparedTrial(
                trial,
                curve,
                scoring.scores[trial],
                None if goal is None else reached(curve, goal, scoring.lower_is_better),
            )
            for trial, curve in ((trial, curves[trial]) for trial in group.trials)
        ]
        settings = shared_settings([reader.settings(trial) for trial in group.trials])
        improvement = _improvement(trials, compared[0].trials, scoring) if index else None
        names = _MARKS[index % len(_MARKS)], group.name
        compared.append(_compared_group(names, trials, axis, settings, improvement))
    return Comparison(
        metric=metric,
        axis=axis,
        goal=goal,
        window=scoring.window,
        scoring=scoring.rule,
        lower_is_better=scoring.lower_is_better,
        groups=tuple(compared),
        ended_early=tuple(unscored_groups(groups, scored, curves, axis, scoring)),
        differences=tuple(differing([group.settings for group in compared])),
        notices=(*left_out, *warnings_of(groups, scored, curves, reader, request)),
        sweep=sweep,
        importance=None if sweep is None else importance_of(sweep),
    )


def _compared_group(
    names: tuple[str, str],
    trials: Sequence[ComparedTrial],
    axis: CurveAxis,
    settings: Settings,
    improvement: Estimate | None,
) -> ComparedGroup:
    strata = _strata(trials)
    return ComparedGroup(
        mark=names[0],
        name=names[1],
        trials=tuple(trials),
        mean=float(np.concatenate(list(strata.values())).mean()),
        iqm=interquartile_mean_of(list(strata.values()), np.random.default_rng(_SEED)),
        improvement=improvement,
        goal=_goal_reached(trials),
        band=band([trial.curve for trial in trials], axis, np.random.default_rng(_SEED)),
        settings=settings,
    )


def _goal_reached(trials: Sequence[ComparedTrial]) -> GoalReached | None:
    times = [trial.reached for trial in trials if trial.reached is not None]
    if not times:
        return None
    steps, seconds = np.array([(time.steps, time.seconds) for time in times]).T
    return GoalReached(int(np.isfinite(steps).sum()), float(np.median(steps)), float(np.median(seconds)))


def _improvement(trials: Sequence[ComparedTrial], first: Sequence[ComparedTrial], scoring: Scoring) -> Estimate | None:
    """Return how likely one of ``trials`` is better than one of ``first``; None if that cannot be estimated."""
    strata, over = _strata(trials), _strata(first)
    shared = sorted(strata.keys() & over.keys())
    if not shared:
        return None
    sign, rng = -1 if scoring.lower_is_better else 1, np.random.default_rng(_SEED)
    estimate = improvement_probability(
        [sign * strata[env] for env in shared], [sign * over[env] for env in shared], rng
    )
    return None if estimate.interval is None else estimate


def _strata(trials: Sequence[ComparedTrial]) -> dict[str, Array]:
    """Return the final scores by environment, the environments in the order of their names."""
    envs = sorted({trial.folder.env for trial in trials})
    return {env: np.array([trial.score for trial in trials if trial.folder.env == env]) for env in envs}


def _refuse_without_rows(groups: Sequence[Group], curves: Curves, metric: str) -> None:
    """Raise UsageError if no trial has reported ``metric``."""
    trials = [trial for group in groups for trial in group.trials]
    if any(len(curves[trial].values) for trial in trials):
        return
    whose = groups[0].name if len(groups) == 1 else f"the {len(groups)} groups"
    names = sorted({name for trial in trials if curves[trial].problem is None for name in _reported(trial)})
    if not names:
        unread = next(filter(None, (_unread(trial, curves[trial]) for trial in trials)), None)
        if unread is not None:
            message = f"no trial of {whose} has rows that can be read: {unread.where}  {unread.message}"
            raise UsageError(message, _IF_UNREAD)
        raise UsageError(f"no trial of {whose} has a result yet", "rlexp ls shows the progress of runs")
    meant = metric_meant(metric)
    close = [meant] if meant in names else get_close_matches(metric, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"metrics: {', '.join(names[:_NAMES_SHOWN])} ..."
    raise UsageError(f"no trial of {whose} has reported {metric}", hint)


def _reported(trial: TrialFolder) -> Iterator[str]:
    """Yield the flat names of all numbers in a trial's last row."""
    for row in read_rows(trial.path, lambda row: row)[0][-1:]:
        yield from (name for name, value in flatten(row).items() if number(value) is not None)


_SHORT_SHARE: Final = 0.8
"""A trial that ends before this share of the longest one gets a warning, as the comparison ends with it."""
_MOST_NAMES: Final = 4


def warnings_of(
    groups: Sequence[Group], scored: Sequence[Group], curves: Curves, reader: SettingsReader, request: ScoreRequest
) -> Iterator[Notice]:
    """Yield warnings about unreadable files, early ends, groups with mixed settings, and groups with a single seed."""
    yield from _unreadable(groups, curves)
    if request.at is None:
        yield from _short(scored, curves, request.axis)
    yield from _mixed(scored, reader)
    yield from _single(groups, scored)


def _unreadable(groups: Sequence[Group], curves: Curves) -> Iterator[Notice]:
    trials = [trial for group in groups for trial in group.trials]
    for run in dict.fromkeys(trial.run for trial in trials):
        if run.problem is not None and os.path.exists(run.path / RUN_FILE):
            yield Notice(str(run.path), f"{run.problem}; its trials are read from their own files")
    for trial in trials:
        unread = _unread(trial, curves[trial])
        if unread is not None:
            yield unread
        elif not len(curves[trial].values) and not failed(trial):
            yield Notice(str(trial.path), "has not reported the metric and is left out")


def _unread(trial: TrialFolder, curve: Curve) -> Notice | None:
    return unread_rows(trial, curve.damaged_lines, curve.problem)


def _short(groups: Sequence[Group], curves: Curves, axis: CurveAxis) -> Iterator[Notice]:
    ends = {trial: float(curves[trial].along(axis)[-1]) for group in groups for trial in group.trials}
    first, longest = min(ends, key=lambda trial: ends[trial]), max(ends.values())
    if ends[first] < _SHORT_SHARE * longest:
        status = f" ({first.record.status})" if first.record else ""
        yield Notice(
            str(first.path),
            f"ends at {amount(ends[first], axis)}{status} of {amount(longest, axis)} {axis.label}: "
            "final scores of all trials are taken there",
        )


def _mixed(groups: Sequence[Group], reader: SettingsReader) -> Iterator[Notice]:
    for group in groups:
        names = differing([reader.settings(trial) for trial in group.trials])
        if names:
            yield Notice(group.name, f"pools trials that differ in {_some(names, ', ')}")
    envs = sorted({trial.env for group in groups for trial in group.trials})
    if len(envs) > 1:
        yield Notice(", ".join(envs), "are different environments; their scores have different scales")


def _single(groups: Sequence[Group], scored: Sequence[Group]) -> Iterator[Notice]:
    sizes = {group.name: len(group.trials) for group in groups}
    single = [group.name for group in scored if len(group.trials) == 1]
    alone = [name for name in single if sizes[name] == 1]
    left = [name for name in single if sizes[name] > 1]
    if alone:
        where = "all groups" if 1 < len(scored) == len(alone) else _some(alone)
        yield Notice(where, "only one seed per group, so no interval; run more seeds")
    if left:
        yield Notice(_some(left), "only one seed has a score, so no interval; the others ended before these steps")


def _some(names: Sequence[str], between: str = "; ") -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return between.join(names[:_MOST_NAMES]) + more
