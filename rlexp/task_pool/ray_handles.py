"""What a RayTaskPool does with Ray's own objects: options of actors, errors, and the processes that actors are in."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from rlexp.errors import TrialError
from rlexp.task_pool.pool import ActorLostError, ArgumentLostError, Ref, Resources

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
    strategy = {} if resources.bundle is None else _in_bundle(resources.bundle)
    if resources.outside_group:  # else Ray places what a trial makes within the trial's group
        strategy = {"scheduling_strategy": "DEFAULT"}
    return {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        "resources": dict(resources.custom),
        "max_restarts": 0,
        **strategy,
    }


def _in_bundle(bundle: int) -> dict[str, Any]:
    """Return Ray's options for an actor in a bundle of the trial that this process is of; none if it is of no trial."""
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    if group is None:
        return {}
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)}


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


def whereabouts(actor: object) -> tuple[str, int]:
    """Return where ``actor`` is: the host's name and the process."""
    return socket.gethostname(), os.getpid()


def kill_here(host: str, pid: int) -> None:
    """Kill one of Ray's processes if it is on this host.

    Ray asks a process to end, which one that hangs or was stopped ignores; on another host only Ray can end it.
    """
    if host == socket.gethostname():
        kill(pid)


def kill(pid: int) -> None:
    """Kill one of Ray's processes on this host; by now the number may be that of an unrelated one."""
    try:
        process = psutil.Process(pid)
        title = "".join(process.cmdline()[:1])  # asked once: a process that ends loses it meanwhile
        if title.startswith("ray::"):
            process.kill()
    except psutil.NoSuchProcess:
        return
