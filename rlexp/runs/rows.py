"""Rows of results: their columns in ``progress.csv``, their flat names, and reading them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.metrics import EPISODE_METRICS, EVALUATION_METRICS, OPTIMIZER_METRICS, PROGRESS_METRICS
from rlexp.errors import CheckpointError
from rlexp.files import parse_json, plain, read_lines
from rlexp.text import is_known

ITERATION: Final = "training_iteration"
TAG_PREFIX: Final = "ray/tune/"
"""Prefix of a column's name in TensorBoard's tags."""
SCORE_TAG: Final = "sweep/score"
"""TensorBoard's tag of the score by which a sweep ranks trials."""

COLUMNS: Final = (
    *PROGRESS_METRICS,
    *EPISODE_METRICS,
    *("done", "date", "timestamp", "trial_name", "experiment_id", "hostname", "node_ip", "pid"),
    *("time_since_restore", "timesteps_since_restore", "iterations_since_restore"),
    *("timers/sample_throughput", "timers/learn_throughput"),
    *OPTIMIZER_METRICS,
    *EVALUATION_METRICS,
    *("info/trained_per_sampled", "info/learner_wait_share", "info/worker_wait_share"),
    *("info/worker_time_share/acting", "info/worker_time_share/stepping", "info/worker_time_share/folding"),
    "info/bottleneck",
)
"""Flat names: ``info/x`` means the item ``x`` of the dict ``info``, as in RLlib's flat files."""

_NO_FIGURES: Final = frozenset(
    {"timestamp", "pid", "time_since_restore", "timesteps_since_restore", "iterations_since_restore"}
)
"""Numbers about when and where a row was made, not about training."""


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``row`` with the items of nested dicts under ``outer/inner`` names, without empty dicts."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the available numbers of a row by their flat names; a list gives one name for each item."""
    for name, value in flatten(row).items():
        if name in _NO_FIGURES:
            continue
        value = plain(value)
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            if isinstance(item, int | float) and not isinstance(item, bool):
                yield (name if index is None else f"{name}/{index}"), float(item)


_COUNTS: Final = ("training_iteration", "timesteps_total", "timesteps_this_iter")
_MOST: Final = 2**63
"""Largest number in a row: event files hold no larger integers."""


def last_row(trial_directory: Path) -> dict[str, Any] | None:
    """Return the last row of ``result.json``; None if there is none. A line that a kill cut is not a row."""
    last = deque(_lines(trial_directory), maxlen=1)
    return parsed_row(last[0]) if last else None


def earlier_rewards(trial_directory: Path) -> list[tuple[int, float]]:
    """Return iteration and mean reward of every row that has one, in order."""
    rows = (parsed_row(line) or {} for line in _lines(trial_directory))
    pairs = ((row.get(ITERATION), row.get("episode_reward_mean")) for row in rows)
    return [(int(iteration), float(reward)) for iteration, reward in pairs if is_known(iteration) and is_known(reward)]


def rows_at(trial_directory: Path, iterations: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of these iterations, if ``result.json`` has them."""
    rows = (parsed_row(line) or {} for line in (_lines(trial_directory) if iterations else ()))
    return {row[ITERATION]: row for row in rows if row.get(ITERATION) in iterations}


def _lines(trial_directory: Path) -> Iterator[bytes]:
    path = trial_directory / "result.json"
    try:
        yield from (line for line in read_lines(path) if line.endswith(b"\n"))
    except OSError:
        return


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if it holds none."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def checkpoint_row(checkpoint: Path, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the row with which a checkpoint was written, from its metadata; None for older ones without it.

    Raises CheckpointError if that is not a row of a trial, as it would be recorded among the others.
    """
    row = metadata.get("metrics")
    if row is None or (isinstance(row, dict) and is_row(row)):
        return row
    raise CheckpointError(
        f"checkpoint {checkpoint}: the metrics in its manifest are not a row of results",
        "it was changed after it was written; use an earlier checkpoint of the trial",
    )


def is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the fields of every result row."""
    counts = [row.get(name) for name in _COUNTS]
    seconds, reward = row.get("time_total_s"), row.get("episode_reward_mean")
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and isinstance(seconds, int | float)
        and isinstance(reward, int | float | None)
        and isinstance(row.get("trial_name"), str)
        and isinstance(row.get("done"), bool)
        and all(abs(number) < _MOST for number in _numbers(row))
    )


def _numbers(row: Mapping[str, Any]) -> Iterator[int | float]:
    for value in flatten(row).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float):
                yield item
