"""When an iteration and a trial end by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlexp.agents.iteration import IterationBounds
from rlexp.config.keys.metric_names import GROWING_METRICS
from rlexp.config.keys.trial_schedulers import TimeAttribute
from rlexp.number_format import exact, score
from rlexp.runs.row_columns import flatten
from rlexp.search.trial_scheduler import Milestones


def reached(stop: Mapping[str, float], row: Mapping[str, Any]) -> str | None:
    """Return which of the ``stop`` values a row has reached, as a sentence, None for none; NaN reaches none."""
    values = flatten(row)
    for metric, goal in stop.items():
        value = values.get(metric)
        if value is not None and value >= goal:
            # A counter ends a little beyond its goal; by how much is of no interest.
            shown = "" if metric in GROWING_METRICS else f" {score(value)}"
            return f"{metric}{shown} reached {exact(goal)}"
    return None


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
