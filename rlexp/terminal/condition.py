"""What ``rlexp doctor`` prints: this machine and what is installed on it."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from rlexp import __version__
from rlexp.cluster.room import Machine
from rlexp.processes.family import Leftover
from rlexp.terminal.lines import aligned, visible

_PACKAGES = (
    "torch",
    "ray",
    "gymnasium",
    "numpy",
    "pydantic",
    "PyYAML",
    "ale-py",
    "box2d",
    "mujoco",
    "tensorboard",
    "optuna",
)
_SHARED_MEMORY = "/dev/shm"


def print_condition(machine: Machine, leftovers: Sequence[Leftover], cleaned: bool, as_json: bool) -> None:
    """Print versions, CPUs, GPUs and memory, and what killed commands left, which may have been ``cleaned`` away."""
    facts = {
        "rlexp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: _version(package) for package in _PACKAGES},
        "cpus": machine.cpus,
        "gpus": machine.gpus,
        "memory_total_bytes": machine.memory_total,
        "memory_available_bytes": machine.memory_available,
        "shared_memory_free_bytes": _free(_SHARED_MEMORY),
    }
    if as_json:
        folders = [
            {"folder": str(each.folder), "bytes": each.bytes, "processes": [process.pid for process in each.processes]}
            for each in leftovers
        ]
        print(json.dumps({**facts, "leftovers": folders, "cleaned": cleaned}))
        return
    rows = [(name.removesuffix("_bytes").replace("_", " "), _shown(name, value)) for name, value in facts.items()]
    sys.stdout.write("\n".join([*aligned(rows), *_leftover_lines(leftovers, cleaned)]) + "\n")


def _leftover_lines(leftovers: Sequence[Leftover], cleaned: bool) -> Iterator[str]:
    if not leftovers:
        return
    yield ""
    yield (
        "removed what killed commands left behind:"
        if cleaned
        else "killed commands left behind (rlexp doctor --clean removes it):"
    )
    for each in leftovers:
        count, folder = len(each.processes), visible(str(each.folder))
        yield f"  {folder}  {each.bytes / 2**20:.1f} MiB, {count} {'process' if count == 1 else 'processes'}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _shown(name: str, value: str | int | None) -> str:
    if value is None:
        return "unknown" if name.endswith("_bytes") else "not installed"
    return f"{int(value) / 2**30:.1f} GiB" if name.endswith("_bytes") else str(value)
