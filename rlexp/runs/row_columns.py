"""The columns of a result row that every agent has, and rows as flat names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlexp.config.keys.metric_names import EPISODE_METRICS, EVALUATION_METRICS, OPTIMIZER_METRICS, PROGRESS_METRICS

ITERATION: Final = "training_iteration"

COLUMNS: Final = (
    *PROGRESS_METRICS,
    *EPISODE_METRICS,
    "done",
    "date",
    "timestamp",
    "trial_name",
    *OPTIMIZER_METRICS,
    *EVALUATION_METRICS,
    "info/trained_per_sampled",
    "info/learner_wait_share",
    "info/worker_wait_share",
    "info/worker_time_share/acting",
    "info/worker_time_share/stepping",
    "info/worker_time_share/folding",
    "info/bottleneck",
)
"""Flat names: ``info/x`` stands for the item ``x`` of the dict ``info``, as RLlib's flat files have it."""


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``row`` with the items of nested dicts under ``outer/inner`` names; empty dicts vanish."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}/"))
        else:
            flat[name] = value
    return flat
