"""What a trial needs that one machine does not have, and the overrides that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment, cpus_of_learners, required_cpus, required_gpus
from rlexp.errors import Problem
from rlexp.machine.changes import SHARD_CPUS, at, changed, rounded
from rlexp.machine.hardware import Machine
from rlexp.machine.replay_memory import bytes_per_transition


def shortfalls(experiment: Experiment, machine: Machine) -> Iterator[Problem]:
    """Yield what one trial needs beyond what the machine has, each with overrides that make it fit."""
    config = experiment.config
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > machine.cpus:
        message = f"{experiment.name} needs {count(cpus, 'CPU')} ({cpu_parts(config)}), this machine has {machine.cpus}"
        yield Problem("", message, _cpu_hint(experiment, machine))
    if gpus > machine.gpus:
        message = f"{experiment.name} needs {count(gpus, 'GPU')} ({gpu_parts(config)})"
        message += f", this machine has {machine.gpus or 'none'}"
        yield Problem("", message, f"{gpu_hint(config)}, or --fit" if not machine.gpus else "--fit")
    for name, amount in config.custom_resources_per_worker.items():
        if amount * config.num_workers > 0:
            message = f"{experiment.name} needs {amount:g} {name} for each worker, which this machine does not have"
            yield Problem("", message, "remove custom_resources_per_worker; only a Ray cluster has such resources")
    replay, each = config.replay, bytes_per_transition(experiment)
    if replay is not None and each is not None and each * replay.capacity > machine.memory_total:
        memory, available = gib(each * replay.capacity), gib(machine.memory_total)
        message = f"{experiment.name} may need {memory} for replay, this machine has {available}"
        yield Problem("", message, f"-o config.{replay.capacity_key}={machine.memory_total // each}, or --fit")


def cpu_parts(config: CommonConfig) -> str:
    """Return what reserves CPUs: ``1 driver + 4 workers x 1``."""
    learners = config.learner_processes
    parts = f"{config.num_cpus_for_driver:g} driver"
    parts += f" + {config.cpus_of_shards:g} shards" if config.cpus_of_shards else ""
    parts += f" + {config.num_reserved_workers} workers x {config.num_cpus_per_worker:g}"
    return parts + (f" + {learners.number} learners x {learners.cpus:g}" if learners else "")


def gpu_parts(config: CommonConfig) -> str:
    """Return what reserves GPUs: ``1 learner + 4 workers x 0.25``."""
    several = "s" if config.learner_processes else ""
    workers = f"{config.num_reserved_workers} workers x {config.num_gpus_per_worker:g}"
    return f"{config.num_gpus:g} learner{several} + {workers}"


def workers_key(config: CommonConfig) -> str:
    """Return the key that says for how many workers a trial reserves room."""
    return "num_workers" if config.min_num_workers is None else "min_num_workers"


def _cpu_hint(experiment: Experiment, machine: Machine) -> str:
    """Return overrides that make the experiment fit: one learner where several leave no room, and what workers need."""
    config, learners = experiment.config, experiment.config.learner_processes
    if config.cpus_of_shards:
        return f"-o config.{SHARD_CPUS}=0, or --fit"
    if learners is None or config.num_cpus_for_driver + cpus_of_learners(config) < machine.cpus:
        return f"{_worker_hint(experiment, machine, '')}, or --fit"
    assert config.LEARNERS_KEY is not None
    keys = {config.LEARNERS_KEY: 1, "num_gpus": min(config.num_gpus, learners.gpus)}
    options = " ".join(f"-o config.{key}={value:g}" for key, value in keys.items() if at(experiment, key) != value)
    single = changed(experiment, keys)
    fits = required_cpus(single) <= machine.cpus
    return f"{options if fits else _worker_hint(single, machine, f'{options} ')}, or --fit"


def _worker_hint(experiment: Experiment, machine: Machine, options: str) -> str:
    """Return overrides, after ``options``, with fewer workers, or with a smaller share for each."""
    config = experiment.config
    left = machine.cpus - config.num_cpus_for_driver - cpus_of_learners(config)
    if left <= 0:
        return f"{options}-o config.num_cpus_for_driver={machine.cpus} -o config.{workers_key(config)}=0"
    workers = f"{options}-o config.{workers_key(config)}={math.floor(left / config.num_cpus_per_worker)}"
    share = rounded(left / config.num_reserved_workers)
    return f"{workers}, or {options}-o config.num_cpus_per_worker={share:g}" if share else workers


def gpu_hint(config: CommonConfig) -> str:
    """Return overrides that give up the GPUs that are asked for."""
    asked = (key for key in ("num_gpus", "num_gpus_per_worker") if getattr(config, key))
    return " ".join(f"-o config.{key}=0" for key in asked)


def count(amount: float, unit: str) -> str:
    """Return an amount with its unit, in the plural where it needs one."""
    return f"{amount:g} {unit}" if amount == 1 else f"{amount:g} {unit}s"


def gib(number: float) -> str:
    """Return ``number`` bytes in GiB."""
    return f"{number / 2**30:.1f} GiB"
