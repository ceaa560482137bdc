"""Own metrics that an experiment names, but that its callbacks do not report: most likely a name is misspelt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.metric_names import EVALUATION_METRICS, is_own_metric
from rlexp.runs.row_columns import flatten


def unreported_metrics(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each own metric that ``row`` lacks, the first one with episodes; none for other rows.

    ``before`` is the trial's last row, empty where there is none. It is no error: a metric may come later.
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
