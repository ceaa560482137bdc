"""What a trial says about a row of results: own metrics that are not reported, and episodes that do not end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.metrics import EVALUATION_METRICS, is_own_metric
from rlexp.runs.row_columns import flatten

STEPS_OF_AN_ENV: Final = 5000
"""After so many without an end it is said; the episodes of most envs are shorter."""


def row_notes(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return sentences about ``row``, each once in a trial; ``before`` is its last row, empty where there is none."""
    return [*_unreported_metrics(experiment, row, before), *_endless_episodes(experiment, row, before)]


def _unreported_metrics(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each own metric that ``row`` lacks, the first one with episodes; none for other rows.

    Most likely a name is misspelt. It is no error: a metric may come later.
    """
    if not row["episodes_total"] or before.get("episodes_total"):
        return []
    values = flatten(row)
    has_evaluation = EVALUATION_METRICS[0] in values
    missing = (
        (key, metric)
        for key, metric in _named(experiment)
        if is_own_metric(metric) and metric not in values and (has_evaluation or not metric.startswith("evaluation/"))
    )
    return [_sentence(key, metric, [name for name in values if is_own_metric(name)]) for key, metric in missing]


def _named(experiment: Experiment) -> Iterator[tuple[str, str]]:
    yield from (("stop", metric) for metric in experiment.stop)
    yield "checkpoint_score_attr", experiment.checkpoint_score_attr.removeprefix("min-")
    yield "search.metric", experiment.search.metric


def _sentence(key: str, metric: str, reported: list[str]) -> str:
    close = get_close_matches(metric, reported, n=1)
    remedy = f"is {close[0]} meant?" if close else f"they report {', '.join(reported) or 'none'}"
    what = f"{key} names {metric}, which the callbacks have not reported in the first iteration with episodes"
    return f"{what}; {remedy}"


def _endless_episodes(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence, once: in the first row after many steps without the end of an episode, or in the last one."""
    config = experiment.config
    if row["episodes_total"] or config.horizon is not None:
        return []
    num_steps = STEPS_OF_AN_ENV * max(config.num_workers, 1) * config.num_envs_per_worker
    steps = row["timesteps_total"]
    is_first = before.get("timesteps_total", 0) < num_steps <= steps
    if not is_first and not (row["done"] and steps < num_steps):
        return []
    return [
        f"no episode has ended in {steps:,} env steps, so there is no episode_reward_mean; "
        "if none ends by itself, config.horizon cuts episodes"
    ]
