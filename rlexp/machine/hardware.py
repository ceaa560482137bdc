"""Machine: the CPUs, GPUs and memory that this process may use."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_GPU_DEVICE = re.compile(r"nvidia\d+")
_NO_DEVICE = "-1"


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
