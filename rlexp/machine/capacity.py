"""Whether trials fit a machine: its CPUs, its GPUs and, as far as files tell, its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment, required_cpus, required_gpus
from rlexp.config.keys.trial import Trial
from rlexp.errors import Problem, ResourceError
from rlexp.machine.hardware import Machine
from rlexp.machine.replay_memory import largest_buffer, replay_bytes

CPU_SHARE_DIGITS = 2
"""Decimals of a share of a CPU."""


def check_fits(trials: Sequence[Trial], machine: Machine) -> None:
    """Raise ResourceError, with a line for each experiment, where one trial needs more than the machine has."""
    problems: dict[str, Problem] = {}
    for trial in trials:
        for problem in _shortfalls(trial.experiment, machine):
            problems.setdefault(problem.message, problem)
    if problems:
        first, *more = problems.values()
        raise ResourceError(first.message, first.hint, more)


def _shortfalls(experiment: Experiment, machine: Machine) -> Iterator[Problem]:
    config = experiment.config
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > machine.cpus:
        parts = f"{config.num_cpus_for_driver:g} driver + {config.num_workers} workers x {config.num_cpus_per_worker:g}"
        message = f"{experiment.name} needs {_count(cpus, 'CPU')} ({parts}), this machine has {machine.cpus}"
        yield Problem("", message, _cpu_hint(experiment, machine))
    if gpus > machine.gpus:
        parts = f"{config.num_gpus:g} learner + {config.num_workers} workers x {config.num_gpus_per_worker:g}"
        message = f"{experiment.name} needs {_count(gpus, 'GPU')} ({parts}), this machine has {machine.gpus or 'none'}"
        yield Problem("", message, f"{_gpu_hint(config)}, or --fit" if not machine.gpus else "--fit")
    for name, amount in config.custom_resources_per_worker.items():
        if amount * config.num_workers > 0:
            message = f"{experiment.name} needs {amount:g} {name} for each worker, which this machine does not have"
            yield Problem("", message, "remove custom_resources_per_worker; only a Ray cluster has such resources")
    memory = replay_bytes(experiment)
    if memory is not None and memory > machine.memory_total:
        message = f"{experiment.name} may need {_gib(memory)} for replay, this machine has {_gib(machine.memory_total)}"
        yield Problem(
            "", message, f"-o config.buffer_size={largest_buffer(experiment, machine.memory_total)}, or --fit"
        )


def _cpu_hint(experiment: Experiment, machine: Machine) -> str:
    """Return overrides that make the experiment fit: fewer workers, or a smaller share for each."""
    config = experiment.config
    left = machine.cpus - config.num_cpus_for_driver
    if left <= 0:
        return f"-o config.num_cpus_for_driver={machine.cpus} -o config.num_workers=0, or --fit"
    workers = f"-o config.num_workers={math.floor(left / config.num_cpus_per_worker)}"
    share = math.floor(left / config.num_workers * 10**CPU_SHARE_DIGITS) / 10**CPU_SHARE_DIGITS
    return f"{workers}, or -o config.num_cpus_per_worker={share:g}, or --fit" if share else f"{workers}, or --fit"


def _gpu_hint(config: CommonConfig) -> str:
    """Return overrides that give up the GPUs that are asked for."""
    asked = (key for key in ("num_gpus", "num_gpus_per_worker") if getattr(config, key))
    return " ".join(f"-o config.{key}=0" for key in asked)


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}" if amount == 1 else f"{amount:g} {unit}s"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
