"""Which keys can change when a run or a sweep is resumed, and which did."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.command_line import shown_override
from rlexp.errors import ResumeError
from rlexp.runs.rows import flatten

_WHAT_IT_RUNS_ON: Final = (
    *("checkpoint_freq", "checkpoint_at_end", "checkpoint_evaluation_episodes"),
    *("keep_checkpoints_num", "checkpoint_score_attr", "max_failures", "reuse_actors", "storage", "track"),
    *("config/num_workers", "config/num_cpus_per_worker", "config/num_gpus_per_worker", "config/num_gpus"),
    *("config/num_learners", "config/num_cpus_per_learner"),
    *("config/min_num_workers", "config/placement", "config/optimizer/num_cpus_per_shard"),
    *("config/num_cpus_for_driver", "config/num_threads_per_worker", "config/custom_resources_per_worker"),
    *("config/max_num_worker_restarts", "config/sample_timeout_s", "config/replay_storage", "config/debug"),
    *("config/evaluation_interval", "config/evaluation_num_episodes", "config/monitor"),
    *("config/checkpoint_replay", "config/board"),
)


CHANGEABLE: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("stop", "time_budget_s", "restore", "num_samples", "search"),
        *("config/timesteps_per_iteration", "config/min_iter_time_s", "config/metrics_smoothing_episodes"),
    }
)
"""Keys of a trial that can change: when it ends, what it runs on and what it reports."""


CHANGEABLE_IN_SWEEPS: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("search/num_samples", "search/max_concurrent", "search/time_budget_s", "search/hang_timeout_s"),
    }
)
"""Keys of a sweep that can change: how much is tried, and what it runs on. All trials have the same other keys."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any], changeable: Collection[str]) -> Iterator[str]:
    """Yield the keys that differ between two experiments and are not ``changeable``: ``lr 0.1 → 0.2``.

    A key that only one of them has was not known to the version that wrote the other.
    """
    old, new = flatten(before), flatten(now)
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key] and not any(key == name or key.startswith(f"{name}/") for name in changeable):
            yield f"{as_typed(key)} {old[key]} → {new[key]}"


def refuse_changes_of(overrides: Sequence[str], fixed: Iterable[str], where: Path) -> None:
    """Raise ResumeError where an override sets a key in which the trials of ``where`` differ, such as the seed."""
    keys = sorted(fixed)
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("config.")
        for name in keys:
            if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}."):
                given = shown_override(text)
                message = f"{given}: {name} cannot change when {where} is resumed, because its trials differ in it"
                raise ResumeError(message, what_can_change(CHANGEABLE))


def what_can_change(changeable: Collection[str]) -> str:
    """Return a hint with the keys that can change."""
    return f"only these keys can change: {', '.join(sorted(map(as_typed, changeable)))}; rlexp run starts a new run"


def as_typed(key: str) -> str:
    """Return a key as files and ``-o`` have it: ``model.fcnet_hiddens`` for ``config/model/fcnet_hiddens``."""
    return key.removeprefix("config/").replace("/", ".").rstrip("_")  # lambda_ in Python is lambda
