"""When an iteration and a trial end by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlexp.agents.iteration import IterationBounds
from rlexp.config.keys.metrics import GROWING_METRICS
from rlexp.config.keys.search import TimeAttribute
from rlexp.number_format import exact, score
from rlexp.runs.row_columns import flatten
from rlexp.search.trial_scheduler import Milestones

PLAYED: Final = ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_reward_mean_all")
"""Metrics of episodes in training, which weights of many versions have played: an evaluation has to confirm them."""


@dataclass(frozen=True)
class Reached:
    """A value of ``stop`` that a row has reached."""

    metric: str
    value: float
    goal: float

    @property
    def needs_evaluation(self) -> bool:
        """Whether it is a reward of training."""
        return self.metric in PLAYED

    def __str__(self) -> str:
        """Return it as a sentence."""
        # A counter ends a little beyond its goal; by how much is of no interest.
        shown = "" if self.metric in GROWING_METRICS else f" {score(self.value)}"
        return f"{self.metric}{shown} reached {exact(self.goal)}"


def reached(stop: Mapping[str, float], row: Mapping[str, Any]) -> Reached | None:
    """Return which of the ``stop`` values a row has reached, one that needs no evaluation first; NaN reaches none."""
    values = flatten(row)
    found = [
        Reached(metric, values[metric], goal)
        for metric, goal in stop.items()
        if values.get(metric) is not None and values[metric] >= goal
    ]
    return min(found, key=lambda each: each.needs_evaluation, default=None)


def ended_by(stop: Mapping[str, float], row: Mapping[str, Any]) -> bool:
    """Return whether a trial is over by its last row: by a counter, or by what ended it when the row was written.

    A reward in a row may not have been confirmed, or be that of a checkpoint's evaluation, which ends no trial.
    """
    found = reached(stop, row)
    return found is not None and (found.metric in GROWING_METRICS or row.get("done") is True)


LastRow = Mapping[str, Any] | Mapping[TimeAttribute, float]
"""The last row of a trial, or how far it has come by it; empty where it has none."""


def iteration_bounds(stop: Mapping[str, float], milestones: Milestones | None, before: LastRow) -> IterationBounds:
    """Return what ends a trial's next iteration: its next milestone or a value of ``stop``, whichever is first."""
    values = dict(stop)
    if milestones is not None:
        metric = milestones.metric
        values[metric] = min(milestones.after(before.get(metric, 0.0)), stop.get(metric, math.inf))
    return IterationBounds(values)


def writes_checkpoint(milestones: Milestones | None, before: LastRow, row: Mapping[str, Any]) -> bool:
    """Return whether a row passes a milestone at which its trial writes a checkpoint."""
    if milestones is None or not milestones.writes_checkpoint:
        return False
    return milestones.passed(before.get(milestones.metric, 0.0), row[milestones.metric])
