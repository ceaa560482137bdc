"""Resources for training: CPUs, GPUs and memory of this Machine or of a Cluster's nodes, and installed packages.

Whether modules, classes and packages of an experiment's envs exist here is found out without importing them.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil

from rlexp.config.keys.env_ids import brought_by, package_of
from rlexp.config.keys.experiment import TrackerName
from rlexp.config.keys.user_code import UserModules, modules_of
from rlexp.config.load import Plan
from rlexp.errors import ConfigError, Problem
from rlexp.user_code.classes import WHERE_MODULES_ARE
from rlexp.user_code.finding import find_module

_GPU_DEVICE = re.compile(r"nvidia\d+")
_NO_DEVICE = "-1"


@dataclass(frozen=True)
class Machine:
    """The resources that one machine offers to this process."""

    cpus: int
    """Whole CPUs within the process's affinity and its control group's quota; at least 1."""
    gpus: int
    memory_total: int
    """Bytes."""
    memory_available: int
    """Bytes available now without swapping."""


def this_machine(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Machine:
    """Return this machine's resources; tests replace ``root`` and ``environ``."""
    memory = psutil.virtual_memory()
    return Machine(available_cpus(root), available_gpus(root, environ), memory.total, memory.available)


def available_cpus(root: Path = Path("/")) -> int:
    """Return the whole CPUs that this process may use: affinity, limited by the quotas of its control groups."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([affinity, *_cpu_quotas(root)])))


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in CPUs, of this process's control group and its parents (versions 2 and 1)."""
    groups = root / "sys/fs/cgroup"
    for group in _group_and_parents(root, "0::"):
        quota, _, period = _text(groups / group / "cpu.max").partition(" ")
        yield from _quota(quota, period)
    for group in _group_and_parents(root, ":cpu,cpuacct:"):
        directory = groups / "cpu,cpuacct" / group
        yield from _quota(_text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us"))


def _group_and_parents(root: Path, marker: str) -> Iterator[Path]:
    """Yield the control group of the line with ``marker`` in /proc/self/cgroup, and its parents, relative to the top.

    Inside a container the group's own folder may be mounted as the top, so the top is always included.
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
    """Return the NVIDIA devices of this machine, limited to the ones in CUDA_VISIBLE_DEVICES."""
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


@dataclass(frozen=True)
class ClusterNode:
    """One machine of a cluster."""

    name: str
    """Its name in Ray's own tables: its address."""
    machine: Machine
    """Its total resources; other jobs may use some of them now."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Amounts of the cluster's own resources, by name."""
    is_driver: bool = False
    """Whether the command runs on it."""
    sees_out: bool = True
    """Whether it has the directory of the runs, as on a shared disk."""


@dataclass(frozen=True)
class Cluster:
    """The nodes that trials may use."""

    nodes: tuple[ClusterNode, ...]
    is_joined: bool = True
    """Whether it is somebody's cluster; if not, the only node is this machine, with our own Ray."""

    @classmethod
    def of(cls, machine: Machine) -> Cluster:
        """Return our own Ray on ``machine``."""
        return cls((ClusterNode("this machine", machine, is_driver=True),), is_joined=False)

    @property
    def cpus(self) -> int:
        return sum(node.machine.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        return sum(node.machine.gpus for node in self.nodes)

    @property
    def shares_out(self) -> bool:
        """Whether every node has the directory of the runs."""
        return all(node.sees_out for node in self.nodes)


def check_requirements(plan: Plan) -> None:
    """Raise ConfigError, with everything that is missing, if an env or an imported module does not exist here."""
    missing = (name for name in plan.modules.imports if find_module(name, plan.modules.folders) is None)
    problems = [Problem(f"--import {name}", *_missing(name)) for name in missing]
    problems += _problems_of_envs(plan)
    for part, place in plan.part_places:
        faults = _faults_of_class(part.name, plan.modules, part.base)
        problems += (Problem(place, f"{part.key} {part.name}: {message}", hint) for message, hint in faults)
    for tracker, place in plan.tracker_places:
        if not is_installed(tracker):
            problems.append(Problem(place, *missing_tracker(tracker)))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _problems_of_envs(plan: Plan) -> Iterator[Problem]:
    """Yield what is missing of the envs; what several of them lack once, at the first of them."""
    envs: dict[tuple[str, str | None], dict[str, str]] = {}
    for (_, env), place in plan.env_places.items():
        for fault in _faults(env, plan.modules):
            envs.setdefault(fault, {}).setdefault(env, place)
    for (message, hint), places in envs.items():
        named = f"env{'s' if len(places) > 1 else ''} {', '.join(places)}"
        yield Problem(next(iter(places.values())), f"{named}: {message}", hint)


def missing_tracker(name: TrackerName) -> tuple[str, str]:
    """Return that a tracker's library is missing, and a hint."""
    return f"track: {name} is not installed", f"pip install 'rlexp[{name}]'"


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a mere folder of that name, such as wandb leaves, does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _missing(name: str) -> tuple[str, str]:
    return f"module {name} does not exist", WHERE_MODULES_ARE


def _faults(env: str, modules: UserModules) -> Iterator[tuple[str, str | None]]:
    """Yield the known missing parts of an env, with hints."""
    package, provider = package_of(env), brought_by(env)
    if provider is not None and len(provider.packages) > 1:
        packages = " and ".join(provider.packages)
        yield f"the packages {packages} both bring it", f"uninstall one of them, or write env: {provider.value}"
    elif package is not None:
        if importlib.util.find_spec(package.module) is None:
            yield f"{package.module} is not installed", f"pip install '{package.requirement}'"
    elif modules_of(env):
        yield from _faults_of_class(env, modules, "gymnasium.Env")


def _faults_of_class(name: str, modules: UserModules, base: str) -> Iterator[tuple[str, str | None]]:
    """Yield what is missing of ``package.module:Class``, which must derive from ``base``, with hints."""
    module, _, class_name = name.rpartition(":")
    found = find_module(module, modules.folders)
    if found is None:
        yield _missing(module)
    else:
        yield from _class_faults(class_name, found, base)


def _class_faults(name: str, module: ModuleSpec, base: str) -> Iterator[tuple[str, str | None]]:
    """Yield the problems of a class ``name`` in a module's source; none if the source does not show them."""
    if not name.isidentifier() or module.origin is None or not module.origin.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(module.origin).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        place = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        yield f"{module.origin}{place} cannot be read: {error}", None
        return
    names = _Names(tree)
    if names.may_have_more:
        return
    if name not in names.defined:
        close = get_close_matches(name, names.defined, n=1)
        yield f"module {module.name} has no {name}", f"did you mean {close[0]}?" if close else None
    elif base and name in names.underived:
        yield (
            f"{name} ({module.origin}:{names.underived[name]}) is not a {base}",
            f"name a class that derives from {base}",
        )


class _Names:
    """The top-level names in a module's source, and those that cannot be classes derived from another."""

    def __init__(self, tree: ast.Module) -> None:
        self.defined: set[str] = set()
        self.underived: dict[str, int] = {}
        """Functions, and classes without a base, with their lines."""
        self.may_have_more = False
        """Whether it may have names that its source does not show."""
        for node in tree.body:
            self._add(node)

    def _is_underived(self, base: ast.expr) -> bool:
        return isinstance(base, ast.Name) and (base.id in self.underived or base.id in dir(builtins))

    def _add(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef(bases=bases, keywords=keywords, body=body):
                self.defined.add(node.name)
                methods = {part.name for part in body if isinstance(part, ast.FunctionDef)}
                if not keywords and all(map(self._is_underived, bases)) and "action_space" not in methods:
                    self.underived[node.name] = node.lineno  # with that method, it may be an env of several agents
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined.add(node.name)
                if node.name != "parallel_env":
                    self.underived[node.name] = node.lineno
                self.may_have_more |= node.name == "__getattr__"
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                self.may_have_more |= any(alias.name == "*" for alias in names)
                self.defined |= {alias.asname or alias.name.partition(".")[0] for alias in names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                nodes = (part for target in targets for part in ast.walk(target))
                self.defined |= {part.id for part in nodes if isinstance(part, ast.Name)}
            case ast.Expr() | ast.Pass():
                pass
            case _:  # if, try, for, with: their definitions depend on what happens
                self.may_have_more = True
