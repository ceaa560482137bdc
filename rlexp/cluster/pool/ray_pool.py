"""RayTaskPool: each object in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlexp.cluster.pool.nodes import ClusterWatch, RayTables
from rlexp.cluster.pool.pool import (
    Actor,
    ArgumentLostError,
    ClusterState,
    Completed,
    InlineTaskPool,
    Lane,
    Ref,
    Resources,
)
from rlexp.cluster.pool.ray_calls import (
    CALL,
    Failed,
    RayCalls,
    actor_options,
    errors_translated,
    kill_here,
    unwrapped,
    whereabouts,
)

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

ARGUMENT_TIMEOUT_S = 60.0
"""Most seconds to wait for an argument of a call in this process; the argument's own call has completed before."""


class RayTaskPool:
    """A TaskPool that runs objects as Ray actors, which die with the process that owns this pool.

    Objects placed without resources stay in this process; arguments that they get by reference are fetched.
    """

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._here = InlineTaskPool()
        # For each actor, its handle and a ref of its process.
        self._actors: dict[Actor[Any], tuple[Any, Any]] = {}
        self._calls = RayCalls(ray.wait)
        self._watch = ClusterWatch(RayTables())

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        if resources is None:
            return self._here.place(name, None, make, *args, **kwargs)
        handle = self._ray.remote(**actor_options(resources))(make).remote(*args, **kwargs)
        actor: Actor[A] = Actor(name, handle, is_here=False)
        self._actors[actor] = handle, getattr(handle, CALL).remote(whereabouts)
        self._watch.add(actor)
        self._calls.fetches = self._watch.sees_several_nodes
        return actor

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        if actor.is_here:
            return self._here.call(actor, method, *self._fetched(args))
        return Ref(getattr(actor.handle, method.__name__).remote(*unwrapped(args)))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if actor.is_here:
            self._start_here(lane, actor, method, args)
            return
        remote = getattr(actor.handle, method.__name__)
        if lane.num_returns > 1:
            refs = remote.options(num_returns=lane.num_returns).remote(*unwrapped(args))
        else:
            refs = [remote.remote(*unwrapped(args))]
        self._calls.add(lane, Completed(actor, tuple(Ref(ref) for ref in refs)))

    def put(self, value: R) -> Ref[R]:
        return Ref(self._ray.put(value))

    def keep(self, value: R) -> Ref[R]:
        return Ref(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        if isinstance(ref.handle, Failed):
            raise ref.handle.error
        if not isinstance(ref.handle, self._ray.ObjectRef):
            here: R = ref.handle
            return here
        with errors_translated():
            value: R = self._ray.get(ref.handle, timeout=timeout)
        return value

    def wait(self, timeout: float) -> bool:
        return self._calls.wait(timeout)

    def cluster_state(self) -> ClusterState:
        return self._watch.state

    def remove(self, actor: Actor[Any]) -> None:
        if actor not in self._actors:
            return
        handle, whereabouts_ref = self._actors.pop(actor)
        self._calls.forget(actor)
        self._watch.remove(actor)
        self._ray.kill(handle, no_restart=True)
        try:
            process = self._ray.get(whereabouts_ref, timeout=0)
        except self._ray.exceptions.RayError:  # it has not started yet, or has died already
            return
        kill_here(process)

    def stop(self) -> None:
        self._watch.stop()
        self._calls.clear()
        actors, self._actors = self._actors, {}
        for handle, _ in actors.values():
            self._ray.kill(handle, no_restart=True)

    def _start_here(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        try:
            values = self._fetched(args)
        except ArgumentLostError as error:  # reported as for an object elsewhere: when the result is used
            lane.deliver(Completed(actor, (Ref(Failed(error)),) * lane.num_returns))
            return
        self._here.start(lane, actor, method, values)

    def _fetched(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self.get(arg, ARGUMENT_TIMEOUT_S) if isinstance(arg, Ref) else arg for arg in args)
