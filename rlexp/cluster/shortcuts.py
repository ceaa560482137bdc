"""The uses of private names of Ray, Tune and PyTorch: whether each is active, and why not.

Most of them shorten a run's start. All such names are looked up here before use. If one is missing or takes other
arguments, these libraries do their usual work, and a note of the run and ``rlexp doctor`` say so.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "RLEXP_QUICK_START"
"""The environment variable whose value ``0`` turns off what only makes the start faster."""
TESTED: Final = ((2, 54), (2, 61))
"""The versions of Ray that were tested, as in pyproject.toml: the lowest, and the first that is too new."""


@dataclass(frozen=True)
class Shortcut:
    """One use of such names."""

    name: str
    parts: tuple[str, ...]
    """``module:name(arguments)``, the first arguments of a function, or ``file:text`` for what is not imported yet."""
    otherwise: str
    """What happens if it is not active."""
    only_quickens: bool = True
    """Whether runs work without it; then the variable turns it off, and so does an untested version of Ray."""
    is_for_clusters: bool = False
    """Whether it is also useful in a joined cluster."""
    platform: str | None = None
    """The only value of ``sys.platform`` with which it works."""

    def refusal(self) -> str | None:
        """Return why it may not be used here, as far as known without Ray; None if nothing is known."""
        if self.only_quickens and os.environ.get(VARIABLE) == "0":
            return f"{VARIABLE}=0"
        if self.platform not in (None, sys.platform):
            return f"it works on {str(self.platform).capitalize()} only"
        return _refusal_of_version() if self.only_quickens else None

    def why_off(self) -> str | None:
        """Return why it is not active; None if it is. Imports Ray."""
        return self.refusal() or next(filter(None, map(_change, self.parts)), None)

    def note(self) -> str | None:
        """Return a run's note if it is off because a library has changed; None if it is not."""
        reason = self.why_off()
        if reason is None or reason.startswith(VARIABLE) or self.platform not in (None, sys.platform):
            return None
        return f"{self.name}: off, since {reason}; {self.otherwise}"


def _refusal_of_version() -> str | None:
    try:
        found = version("ray")
    except PackageNotFoundError:
        return "Ray is not installed"
    lowest, too_new = TESTED
    if lowest <= tuple(map(int, found.split(".")[:2])) < too_new:
        return None
    return f"Ray {found} was not tested, but {_dotted(lowest)} to before {_dotted(too_new)}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _change(part: str) -> str | None:
    """Return how the installed Ray differs from what is known of a part; None if it does not."""
    where, _, what = part.partition(":")
    if where.endswith(".py"):
        return None if what in _source(where) else f"{where} has no {what!r}"
    name, _, arguments = what.removesuffix(")").partition("(")
    try:
        found: Any = import_module(where)
        for each in name.split("."):
            found = getattr(found, each)
    except (AttributeError, ImportError):
        return f"Ray has no {where}.{name}"
    known = arguments.split(", ") if arguments else []
    if known and list(signature(found).parameters)[: len(known)] != known:
        return f"{where}.{name} of Ray takes other arguments"
    return None


def _source(path: str) -> str:
    """Return the text of a library's file, without importing its package."""
    spec = find_spec(path.partition("/")[0])
    try:
        return Path(str(spec and spec.origin)).parents[1].joinpath(path).read_text(encoding="utf-8")
    except (IndexError, OSError):
        return ""


FORK_SERVER: Final = Shortcut(
    "fork server",
    ("ray._raylet:UniqueID.from_random",),
    "each process of a trial or worker imports Ray and PyTorch by itself",
    platform="linux",
)
IDLE_PROCESSES: Final = Shortcut(
    "idle processes",
    (
        "ray/tune/execution/tune_controller.py:_class_cache = _ActorClassCache()",
        "ray/tune/execution/class_cache.py:def get(self, trainable_cls)",
    ),
    "Ray starts a new process for each trial and worker",
)
SMALL_SERVICES: Final = Shortcut(
    "small services",
    (
        "ray._private.node:Node.start_monitor(self)",
        "ray._private.node:Node.start_api_server(self)",
        "ray._private.node:Node.start_log_monitor(self)",
        "ray._private.node:Node.start_ray_processes(self)",
        "ray._private.node:Node.kill_all_processes(self, check_alive, allow_graceful, wait)",
        "ray._private.services:start_ray_process(command, process_type)",
        "ray._raylet:persist_port(dir, node_id, port_name, port)",
        "ray._raylet:DASHBOARD_AGENT_LISTEN_PORT_NAME",
        "ray._raylet:METRICS_AGENT_PORT_NAME",
        "ray._raylet:METRICS_EXPORT_PORT_NAME",
        "ray._raylet:RUNTIME_ENV_AGENT_PORT_NAME",
        # New processes of Tune have runtime environments, which one of the services prepares.
        *IDLE_PROCESSES.parts,
    ),
    "Ray starts all of its services, also for clusters and dashboards",
)
UNCOUNTED_CALLBACKS: Final = Shortcut(
    "uncounted callbacks",
    ("ray/air/_internal/usage.py:def tag_callbacks(callbacks",),
    "Tune imports each tracker that is installed",
    is_for_clusters=True,
)
NODE_TABLES: Final = Shortcut(
    "tables of nodes",
    (
        "ray._private.state:state.actor_table(actor_id, job_id)",
        "ray._private.state:state.available_resources_per_node",
        "ray._private.state:state.get_draining_nodes",
        "ray.actor:ActorHandle._actor_id",
    ),
    "lost nodes are found late, and failures by them count; no trial leaves a node that is about to end",
    only_quickens=False,
    is_for_clusters=True,
)
PLAIN_PATH: Final = Shortcut(
    "plain path",
    ("ray.job_config:JobConfig._serialize(self)", "ray/job_config.py:sys_path.extend(self._py_driver_sys_path)"),
    "processes of trials may import modules of the current folder in place of installed ones",
    only_quickens=False,
    is_for_clusters=True,
)
FUSED_ADAM: Final = Shortcut(
    "fused Adam",
    ("torch/optim/adam.py:torch._fused_adam_",),
    "updates of small networks take up to a sixth longer",
    only_quickens=False,
    is_for_clusters=True,
)
SHORTCUTS: Final = (
    FORK_SERVER,
    SMALL_SERVICES,
    IDLE_PROCESSES,
    UNCOUNTED_CALLBACKS,
    NODE_TABLES,
    PLAIN_PATH,
    FUSED_ADAM,
)


def notes(is_joined: bool) -> list[str]:
    """Return a run's notes about shortcuts that are off as a library has changed; ``is_joined``: in a cluster."""
    used = [each for each in SHORTCUTS if (each.is_for_clusters if is_joined else each is not NODE_TABLES)]
    return [note for each in used if (note := each.note()) is not None]
