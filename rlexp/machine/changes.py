"""An experiment with other values of some keys under ``config``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from rlexp.config.keys.experiment import Experiment

Changes = dict[str, Any]
"""Keys, such as ``optimizer.debug``, with their new values."""

SHARD_CPUS: Final = "optimizer.num_cpus_per_shard"

_CPU_SHARES = 100
"""Shares of a CPU are multiples of 1 / 100."""


def rounded(share: float) -> float:
    """Return a share of a CPU, rounded down."""
    return math.floor(share * _CPU_SHARES) / _CPU_SHARES


def at(experiment: Experiment, key: str) -> Any:
    """Return the value of a key under ``config``, such as ``optimizer.debug``."""
    group, _, name = key.rpartition(".")
    return getattr(getattr(experiment.config, group) if group else experiment.config, name)


def changed(experiment: Experiment, keys: Changes) -> Experiment:
    """Return the experiment with other values; they need no validation, being smaller than valid ones."""
    config = experiment.config
    for group, own in _by_group(keys):
        below = getattr(config, group).model_copy(update=own) if group else None
        config = config.model_copy(update={group: below} if group else own)
    return experiment.model_copy(update={"config": config})


def _by_group(keys: Changes) -> Iterator[tuple[str, Changes]]:
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        yield group, {name: value}
