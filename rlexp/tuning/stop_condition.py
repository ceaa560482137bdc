"""When a trial ends by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.metric_names import GROWING_METRICS
from rlexp.number_format import exact, score
from rlexp.runs.recorders import flatten


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
