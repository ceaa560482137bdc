"""The columns of a result row that every agent has, and rows as flat names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlexp.config.keys.metrics import EPISODE_METRICS, EVALUATION_METRICS, OPTIMIZER_METRICS, PROGRESS_METRICS
from rlexp.files import plain

ITERATION: Final = "training_iteration"

COLUMNS: Final = (
    *PROGRESS_METRICS,
    *EPISODE_METRICS,
    "done",
    "date",
    "timestamp",
    "trial_name",
    "experiment_id",
    "hostname",
    "node_ip",
    "pid",
    "time_since_restore",
    "timesteps_since_restore",
    "iterations_since_restore",
    "timers/sample_throughput",
    "timers/learn_throughput",
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

_NO_FIGURES: Final = frozenset(
    {"timestamp", "pid", "time_since_restore", "timesteps_since_restore", "iterations_since_restore"}
)
"""Numbers that say where and when a row was made, not how training went."""


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


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of a row that are there, by their flat names; a list gives one name for each item."""
    for name, value in flatten(row).items():
        if name in _NO_FIGURES:
            continue
        value = plain(value)
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            if isinstance(item, int | float) and not isinstance(item, bool):
                yield (name if index is None else f"{name}/{index}"), float(item)
