"""Machine: the CPUs, GPUs and memory that this process may use, and whether trials fit it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlexp.config.common import CommonConfig
from rlexp.config.experiment import Experiment, required_cpus, required_gpus
from rlexp.config.trial import Trial
from rlexp.errors import Problem, ResourceError

_GPU_DEVICE = re.compile(r"nvidia\d+")
_NO_DEVICE = "-1"
_CPU_SHARE_DIGITS = 2


@dataclass(frozen=True)
class Machine:
    """What one machine offers to this process."""

    cpus: int
    """Whole CPUs within the process's affinity and its control group's quota; at least 1."""
    gpus: int
    memory_total: int
    """Bytes."""
    memory_available: int
    """Bytes that can be had without swapping, now."""


def this_machine(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Machine:
    """Return what this machine offers; ``root`` and ``environ`` stand in for the real ones in tests."""
    memory = psutil.virtual_memory()
    return Machine(available_cpus(root), available_gpus(root, environ), memory.total, memory.available)


def available_cpus(root: Path = Path("/")) -> int:
    """Return the whole CPUs that this process may use: affinity, cut by the quotas of its control groups."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([affinity, *_cpu_quotas(root)])))


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in CPUs, of this process's control group and those above it (versions 2 and 1)."""
    groups = root / "sys/fs/cgroup"
    for group in _group_and_parents(root, "0::"):
        quota, _, period = _text(groups / group / "cpu.max").partition(" ")
        yield from _quota(quota, period)
    for group in _group_and_parents(root, ":cpu,cpuacct:"):
        directory = groups / "cpu,cpuacct" / group
        yield from _quota(_text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us"))


def _group_and_parents(root: Path, marker: str) -> Iterator[Path]:
    """Yield the control group of the line with ``marker`` in /proc/self/cgroup, and its parents, relative to the top.

    Inside a container the group's own folder may be mounted as the top, so the top is always among them.
    """
    lines = _text(root / "proc/self/cgroup").splitlines()
    names = [line.partition(marker)[2] for line in lines if marker in line]
    group = Path(names[0].strip("/")) if names else Path()
    yield group
    yield from group.parents


def _quota(quota: str, period: str) -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def available_gpus(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
    """Return the NVIDIA devices of this machine, cut to those that CUDA_VISIBLE_DEVICES names."""
    try:
        devices = sum(1 for entry in (root / "dev").iterdir() if _GPU_DEVICE.fullmatch(entry.name))
    except OSError:
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return devices
    names = [name.strip() for name in visible.split(",")]
    stop = next((index for index, name in enumerate(names) if name in ("", _NO_DEVICE)), len(names))
    return min(devices, stop)


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
        yield Problem("", message, _gpu_hint(config) if not machine.gpus else None)


def _cpu_hint(experiment: Experiment, machine: Machine) -> str:
    """Return overrides that make the experiment fit: fewer workers, or a smaller share for each."""
    config = experiment.config
    left = machine.cpus - config.num_cpus_for_driver
    if left <= 0:
        return f"-o config.num_cpus_for_driver={machine.cpus} -o config.num_workers=0"
    workers = f"-o config.num_workers={math.floor(left / config.num_cpus_per_worker)}"
    share = math.floor(left / config.num_workers * 10**_CPU_SHARE_DIGITS) / 10**_CPU_SHARE_DIGITS
    return f"{workers}, or -o config.num_cpus_per_worker={share:g}" if share else workers


def _gpu_hint(config: CommonConfig) -> str:
    """Return overrides that give up the GPUs that are asked for."""
    asked = (key for key in ("num_gpus", "num_gpus_per_worker") if getattr(config, key))
    return " ".join(f"-o config.{key}=0" for key in asked)


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}" if amount == 1 else f"{amount:g} {unit}s"
