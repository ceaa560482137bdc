"""RayTaskPool: objects in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlexp.task_pool.inline_pool import InlineTaskPool
from rlexp.task_pool.pool import Actor, Completed, Lane, Ref, Resources

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

ARGUMENT_TIMEOUT_S = 60.0
"""Bound of the wait for an argument that a call in this process needs; its own call has completed before."""


class RayTaskPool:
    """A TaskPool that runs objects as Ray actors, which die with the process that owns this pool.

    Objects placed without resources stay in this process; what they are given by reference is fetched.
    """

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._here = InlineTaskPool()
        self._actors: list[Any] = []
        self._pending: dict[Any, tuple[Lane, Completed[Any, Any]]] = {}

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        if resources is None:
            return self._here.place(name, None, make, *args, **kwargs)
        remote = self._ray.remote(
            num_cpus=resources.cpus, num_gpus=resources.gpus, resources=dict(resources.custom), max_restarts=0
        )(make)
        handle = remote.remote(*args, **kwargs)
        self._actors.append(handle)
        return Actor(name, handle, is_here=False)

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

    def get(self, ref: Ref[R], timeout: float) -> R:
        is_elsewhere = isinstance(ref.handle, self._ray.ObjectRef)
        value: R = self._ray.get(ref.handle, timeout=timeout) if is_elsewhere else ref.handle
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

    def stop(self) -> None:
        self._pending.clear()
        actors, self._actors = self._actors, []
        for handle in actors:
            self._ray.kill(handle, no_restart=True)

    def _fetched(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self.get(arg, ARGUMENT_TIMEOUT_S) if isinstance(arg, Ref) else arg for arg in args)


def _unwrapped(args: tuple[object, ...]) -> list[object]:
    return [arg.handle if isinstance(arg, Ref) else arg for arg in args]
