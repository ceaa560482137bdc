"""Which keys may be other ones when a run or a sweep goes on, and which are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from rlexp.tuning.recorders import flatten

_WHAT_IT_RUNS_ON: Final = (
    *("checkpoint_freq", "checkpoint_at_end", "keep_checkpoints_num", "checkpoint_score_attr", "max_failures"),
    *("config/num_workers", "config/num_cpus_per_worker", "config/num_gpus_per_worker", "config/num_gpus"),
    *("config/num_cpus_for_driver", "config/num_threads_per_worker", "config/custom_resources_per_worker"),
    *("config/max_num_worker_restarts", "config/sample_timeout_s", "config/replay_storage", "config/debug"),
    *("config/evaluation_interval", "config/evaluation_num_episodes", "config/monitor"),
    "config/checkpoint_replay",
)

CHANGEABLE: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("stop", "time_budget_s", "restore", "num_samples", "search"),
        *("config/timesteps_per_iteration", "config/min_iter_time_s", "config/metrics_smoothing_episodes"),
    }
)
"""Of a trial: when it ends, what it runs on and what it reports."""

CHANGEABLE_IN_SWEEPS: Final = frozenset(
    {
        *_WHAT_IT_RUNS_ON,
        *("search/num_samples", "search/max_concurrent", "search/time_budget_s", "search/hang_timeout_s"),
    }
)
"""Of a sweep: how much is tried, and what it runs on. What trials that are over had must hold for all others."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any], changeable: Collection[str]) -> Iterator[str]:
    """Yield the keys of two experiments that are others in them and are not ``changeable``: ``lr 0.1 → 0.2``.

    A key that only one of them has was not known to the version that wrote the other.
    """
    old, new = flatten(before), flatten(now)
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key] and not any(key == name or key.startswith(f"{name}/") for name in changeable):
            yield f"{as_typed(key)} {old[key]} → {new[key]}"


def as_typed(key: str) -> str:
    """Return a key as files and ``-o`` have it: ``model.fcnet_hiddens`` for ``config/model/fcnet_hiddens``."""
    return key.removeprefix("config/").replace("/", ".")
