"""``--fit``: an experiment scaled down to a machine, and what that changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rlexp.config.keys.experiment import Experiment, required_cpus
from rlexp.machine.capacity import CPU_SHARE_DIGITS
from rlexp.machine.hardware import Machine
from rlexp.machine.replay_memory import bytes_per_transition

_FEWEST_WORKERS = 2
"""With one worker, only its envs explore differently; two are kept if the file has as many."""
_SHARE_OF_MEMORY = 0.5
"""Part of the available memory that replay may take; the rest is for workers, batches and the network."""

Changes = dict[str, Any]


def fitted(experiment: Experiment, machine: Machine) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment with no more workers, shards, GPUs and replay than the machine holds, and what changed."""
    said: list[str] = []
    for change in (_fewer_gpus, _fewer_cpus, _fewer_shards, _less_replay):
        keys = {key: value for key, value in change(experiment, machine).items() if _at(experiment, key) != value}
        said += [
            f"{key}: {_shown(value)} instead of {_shown(_at(experiment, key))} (--fit)" for key, value in keys.items()
        ]
        experiment = _changed(experiment, keys)
    return experiment, tuple(said)


def _fewer_gpus(experiment: Experiment, machine: Machine) -> Changes:
    """Return no more GPUs than the agent can use and the machine has; the learner's go before the workers'."""
    config = experiment.config
    learner = min(config.num_gpus, config.MOST_GPUS)
    share = config.num_gpus_per_worker if config.WORKERS_USE_GPUS else 0.0
    if learner + share * config.num_workers > machine.gpus:
        learner = min(learner, float(machine.gpus))
        share = min(share, _rounded((machine.gpus - learner) / max(config.num_workers, 1)))
    return {"num_gpus": learner, "num_gpus_per_worker": share}


def _fewer_cpus(experiment: Experiment, machine: Machine) -> Changes:
    config = experiment.config
    if required_cpus(experiment) <= machine.cpus:
        return {}
    driver = min(config.num_cpus_for_driver, machine.cpus if config.num_workers == 0 else machine.cpus / 2)
    left = machine.cpus - driver
    fewest = min(config.num_workers, _FEWEST_WORKERS)
    workers = min(config.num_workers, max(math.floor(left / max(config.num_cpus_per_worker, 0.01)), fewest))
    share = min(config.num_cpus_per_worker, _rounded(left / max(workers, 1)))
    return {"num_cpus_for_driver": driver, "num_workers": workers, "num_cpus_per_worker": share}


def _fewer_shards(experiment: Experiment, machine: Machine) -> Changes:
    return experiment.config.with_at_most(machine.cpus)


def _less_replay(experiment: Experiment, machine: Machine) -> Changes:
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    if replay is None or each is None:
        return {}
    fits = math.floor(machine.memory_available * _SHARE_OF_MEMORY / each)
    return {"buffer_size": max(min(replay.capacity, fits), replay.least_capacity)}


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _rounded(share: float) -> float:
    digits = 10.0**CPU_SHARE_DIGITS
    return math.floor(share * digits) / digits


def _at(experiment: Experiment, key: str) -> Any:
    group, _, name = key.rpartition(".")
    return getattr(getattr(experiment.config, group) if group else experiment.config, name)


def _changed(experiment: Experiment, keys: Changes) -> Experiment:
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
