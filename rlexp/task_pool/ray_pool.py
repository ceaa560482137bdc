"""RayTaskPool: each object in a separate process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import psutil

from rlexp.errors import TrialError
from rlexp.task_pool.pool import Actor, ActorLostError, Completed, InlineTaskPool, Lane, Ref, Resources

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

ARGUMENT_TIMEOUT_S = 60.0
"""Bound of the wait for an argument that a call in this process needs; its own call has completed before."""

CALL = "__ray_call__"
"""Ray's own method of every actor: calls a function with the object."""


class RayTaskPool:
    """A TaskPool that runs objects as Ray actors, which die with the process that owns this pool.

    Objects placed without resources stay in this process; what they are given by reference is fetched.
    """

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._here = InlineTaskPool()
        # Of each actor its handle, and a ref of the host and the process that it is in.
        self._actors: dict[Actor[Any], tuple[Any, Any]] = {}
        self._pending: dict[Any, tuple[Lane, Completed[Any, Any]]] = {}

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        if resources is None:
            return self._here.place(name, None, make, *args, **kwargs)
        options: dict[str, Any] = {} if resources.bundle is None else _in_bundle(resources.bundle)
        if resources.outside_group:  # else Ray places what a trial makes within the trial's group
            options = {"scheduling_strategy": "DEFAULT"}
        remote = self._ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            resources=dict(resources.custom),
            max_restarts=0,
            **options,
        )(make)
        handle = remote.remote(*args, **kwargs)
        actor: Actor[A] = Actor(name, handle, is_here=False)
        self._actors[actor] = handle, getattr(handle, CALL).remote(_whereabouts)
        return actor

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        if actor.is_here:
            return self._here.call(actor, method, *self._fetched(args))
        return Ref(getattr(actor.handle, method.__name__).remote(*_unwrapped(args)))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if actor.is_here:
            self._here.start(lane, actor, method, self._fetched(args))
            return
        remote = getattr(actor.handle, method.__name__)
        if lane.num_returns > 1:
            refs = remote.options(num_returns=lane.num_returns).remote(*_unwrapped(args))
        else:
            refs = [remote.remote(*_unwrapped(args))]
        # A call's parts become ready together, so the last one stands for all.
        self._pending[refs[-1]] = (lane, Completed(actor, tuple(Ref(ref) for ref in refs)))

    def put(self, value: R) -> Ref[R]:
        return Ref(self._ray.put(value))

    def keep(self, value: R) -> Ref[R]:
        return Ref(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        if not isinstance(ref.handle, self._ray.ObjectRef):
            here: R = ref.handle
            return here
        try:
            value: R = self._ray.get(ref.handle, timeout=timeout)
        except self._ray.exceptions.RayActorError as error:
            if error.actor_init_failed:
                raise TrialError(str(error).strip().splitlines()[-1]) from error  # the rest is where it was raised
            raise ActorLostError("its process died") from error
        except self._ray.exceptions.ObjectLostError as error:
            raise ActorLostError("its result is lost") from error
        return value

    def wait(self, timeout: float) -> bool:
        if not self._pending:
            return False
        refs = list(self._pending)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        for ref in ready:
            lane, call = self._pending.pop(ref)
            lane.deliver(call)
        return True

    def remove(self, actor: Actor[Any]) -> None:
        if actor not in self._actors:
            return
        handle, whereabouts = self._actors.pop(actor)
        self._pending = {ref: (lane, call) for ref, (lane, call) in self._pending.items() if call.actor is not actor}
        self._ray.kill(handle, no_restart=True)
        try:
            host, pid = self._ray.get(whereabouts, timeout=0)
        except self._ray.exceptions.RayError:  # it has not come so far, or has died already
            return
        # Ray asks a process to end, which one that hangs or was stopped does not hear.
        if host == socket.gethostname():
            _kill(pid)

    def stop(self) -> None:
        self._pending.clear()
        actors, self._actors = self._actors, {}
        for handle, _ in actors.values():
            self._ray.kill(handle, no_restart=True)

    def _fetched(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self.get(arg, ARGUMENT_TIMEOUT_S) if isinstance(arg, Ref) else arg for arg in args)


def _unwrapped(args: tuple[object, ...]) -> list[object]:
    return [arg.handle if isinstance(arg, Ref) else arg for arg in args]


def _in_bundle(bundle: int) -> dict[str, Any]:
    """Return Ray's options for an actor in a bundle of the trial that this process is of; none if it is of no trial."""
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    if group is None:
        return {}
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)}


def _whereabouts(actor: object) -> tuple[str, int]:
    """Return where ``actor`` is: the host's name and the process."""
    return socket.gethostname(), os.getpid()


def _kill(pid: int) -> None:
    """Kill one of Ray's processes; the number may have passed to a stranger's by now."""
    try:
        process = psutil.Process(pid)
        title = "".join(process.cmdline()[:1])  # asked once: a process that ends loses it meanwhile
        if title.startswith("ray::"):
            process.kill()
    except psutil.NoSuchProcess:
        return
