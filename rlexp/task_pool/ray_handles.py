"""What a RayTaskPool does with Ray's own objects: options of actors, errors, and the processes that actors are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlexp.errors import TrialError
from rlexp.task_pool.pool import ActorLostError, ArgumentLostError, Ref, Resources
from rlexp.task_pool.trial_group import own_node

CALL = "__ray_call__"
"""Ray's own method of every actor: calls a function with the object."""


@dataclass(frozen=True, eq=False)
class Failed:
    """The handle of a Ref in place of a result: the call could not be made, since an argument was lost."""

    error: ArgumentLostError


def unwrapped(args: tuple[object, ...]) -> list[object]:
    """Return arguments as Ray takes them."""
    return [arg.handle if isinstance(arg, Ref) else arg for arg in args]


def actor_options(resources: Resources) -> dict[str, Any]:
    """Return Ray's options for an actor with these resources."""
    return {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        "resources": dict(resources.custom),
        "max_restarts": 0,
        **_strategy(resources),
    }


def _strategy(resources: Resources) -> dict[str, Any]:
    """Return Ray's options for where an actor goes: in or outside of the group of the trial that this process is of."""
    if resources.outside_group:  # else Ray places what a trial makes within the trial's group
        return {"scheduling_strategy": "DEFAULT"}
    if resources.bundle is None:
        return {}
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    if group is None:
        return {}
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=resources.bundle)
    }


@contextmanager
def errors_translated() -> Iterator[None]:
    """Raise Ray's errors about lost processes and values as the pool's own.

    An error that was raised within a call, which Ray marks as RayTaskError, shows that the called object lives:
    what is lost is an argument.
    """
    from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

    try:
        yield
    except (RayActorError, ObjectLostError, RayTaskError) as error:
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, (RayActorError, ObjectLostError)):
            raise ArgumentLostError("a value that it needs is lost") from error
        if cause is not None:
            raise
        if isinstance(error, ObjectLostError):
            raise ArgumentLostError("its result is lost") from error
        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise TrialError(str(error).strip().splitlines()[-1]) from error  # the rest is where it was raised
        raise ActorLostError("its process died") from error


@dataclass(frozen=True)
class Process:
    """One of Ray's processes, told apart from every other one: hosts may share a name, and numbers are used again."""

    node_id: str
    """Ray's."""
    pid: int
    started: str
    """When, as the system of its node counts; empty where that does not say."""


def whereabouts(actor: object) -> Process:
    """Return the process that ``actor`` is in, which calls this."""
    return Process(own_node().id, os.getpid(), _started(os.getpid()))


def kill_here(process: Process) -> None:
    """Kill one of Ray's processes if it is on this node.

    Ray asks a process to end, which one that hangs or was stopped ignores; on another node only Ray can end it.
    """
    if process.node_id == own_node().id:
        kill(process)


def kill(process: Process) -> None:
    """Kill one of Ray's processes on this node; by now its number may be that of an unrelated one."""
    try:
        found = psutil.Process(process.pid)
        title = "".join(found.cmdline()[:1])  # asked once: a process that ends loses it meanwhile
        if title.startswith("ray::") and _started(process.pid) == process.started:
            found.kill()
    except psutil.NoSuchProcess:
        return


def _started(pid: int) -> str:
    """Return when a process has started, in ticks since the system has: no change of the clock changes that."""
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")
        return fields.split()[19]
    except (OSError, IndexError):
        return ""
