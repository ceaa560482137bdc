"""How compared trials are scored: over the last tenth of the steps that all have, or as their sweep scored them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlexp.metrics.statistics import FINAL_SHARE, final_score
from rlexp.results.axis import Axis, amount, unit_of
from rlexp.results.curve import Curve, number
from rlexp.results.group import Group
from rlexp.results.trial_folder import TrialFolder, read_mapping
from rlexp.runs.run_record import Status
from rlexp.search.ranking import RULE, SCORE_RULE, SWEEP_FILE

Curves = Mapping[TrialFolder, Curve]


@dataclass(frozen=True)
class Window:
    """The last part of what all trials have: from ``start``, not counted, to ``end``, counted."""

    start: float
    end: float


class Scoring(Protocol):
    """Scores the trials of a comparison, and orders its groups."""

    @property
    def window(self) -> Window | None:
        """Where final scores are taken; None if each trial has its own window."""

    @property
    def rule(self) -> str:
        """How trials are scored, in a sentence."""

    @property
    def lower_is_better(self) -> bool:
        """Whether less of the metric is better."""

    def score(self, trial: TrialFolder) -> float | None:
        """Return a trial's final score, None if it has none and is left out."""

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups in the order in which they are shown; the others are compared with the first."""

    def comparable(self, trials: Sequence[TrialFolder], others: Sequence[TrialFolder]) -> bool:
        """Return whether the scores of two groups are of the same steps."""


@dataclass(frozen=True)
class FinalWindow:
    """The mean over the last tenth of what all trials have."""

    window: Window
    curves: Curves
    axis: Axis
    num_trials: int

    @property
    def rule(self) -> str:
        unit = unit_of(self.axis, self.window.end)
        start, end = (amount(x / unit.size, self.axis) for x in (self.window.start, self.window.end))
        part_of = "of the trial" if self.num_trials == 1 else f"that all {self.num_trials} trials have"
        return f"Scores are means over {unit.label} {start} to {end}, the last tenth {part_of}."

    @property
    def lower_is_better(self) -> bool:
        return False

    def score(self, trial: TrialFolder) -> float | None:
        curve = self.curves[trial]
        return final_score(curve.along(self.axis), curve.values, self.window.start, self.window.end)

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        return list(groups)

    def comparable(self, trials: Sequence[TrialFolder], others: Sequence[TrialFolder]) -> bool:
        return True


@dataclass(frozen=True)
class SweepScoring:
    """The scores and the order of the ranking in ``sweep.json``, by the names of the trials' directories."""

    rule: str
    lower_is_better: bool
    scores: Mapping[str, float]
    """Without trials that have none: they failed, or have no value yet."""
    ranks: Mapping[str, int]
    """Of each trial's configuration, from 0, the best."""

    @property
    def window(self) -> Window | None:
        return None

    def score(self, trial: TrialFolder) -> float | None:
        return self.scores.get(_name(trial))

    def in_order(self, groups: Sequence[Group]) -> list[Group]:
        return sorted(groups, key=lambda group: min(self.ranks[_name(trial)] for trial in group.trials))

    def comparable(self, trials: Sequence[TrialFolder], others: Sequence[TrialFolder]) -> bool:
        return not any(_ended_early(trial) for trial in (*trials, *others))


def scoring_of(arguments: Sequence[str], groups: Sequence[Group], curves: Curves, metric: str, axis: Axis) -> Scoring:
    """Return the scoring of the only sweep that is compared, by its own metric and steps; else by a final window."""
    trials = [trial for group in groups for trial in group.trials]
    if len(arguments) == 1 and axis is Axis.STEPS:
        sweep = _sweep_scoring(read_mapping(Path(arguments[0]) / SWEEP_FILE), metric)
        if sweep is not None and any(sweep.score(trial) is not None for trial in trials):
            return sweep
    return FinalWindow(final_window([curves[trial] for trial in trials], axis), curves, axis, len(trials))


def final_window(curves: Sequence[Curve], axis: Axis) -> Window:
    """Return the last tenth of the steps or seconds that every curve has: the shortest curve ends it."""
    end = min(float(curve.along(axis)[-1]) for curve in curves)
    return Window(end * (1 - FINAL_SHARE), end)


def _sweep_scoring(content: Mapping[str, Any], metric: str) -> SweepScoring | None:
    search, configurations = content.get("search"), content.get("configurations")
    if not isinstance(search, dict) or not isinstance(configurations, list) or search.get("metric") != metric:
        return None
    trials = [(rank, trial) for rank, each in enumerate(configurations) for trial in _trials(each)]
    scores = {str(trial.get("name")): number(trial.get("score")) for _, trial in trials}
    known = {name: score for name, score in scores.items() if score is not None}
    ranks = {str(trial.get("name")): rank for rank, trial in trials}
    rule = f"{SCORE_RULE.format(metric=metric)} {RULE}"
    return SweepScoring(rule, search.get("mode") == "min", known, ranks)


def _trials(configuration: Any) -> list[dict[str, Any]]:
    trials = configuration.get("trials") if isinstance(configuration, dict) else None
    return [trial for trial in trials if isinstance(trial, dict)] if isinstance(trials, list) else []


def _name(trial: TrialFolder) -> str:
    return trial.path.resolve().name


def _ended_early(trial: TrialFolder) -> bool:
    return trial.record is None or trial.record.status is not Status.TERMINATED
