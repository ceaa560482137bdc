"""Calls in flight, and who made them: the one place where a plain object becomes a Ray actor.

Every concurrent thing of the package is a plain class. A pool *places* it (``RayTaskPool``: as an actor
in a process of its own; ``InlineTaskPool``: as it is, for tests and for ``num_workers: 0``) and calls
its methods, which are named by the class's own function, so that a reader finds every caller:

    shard = pool.place("replay-0", ReplayShard, config, seed)
    lane.submit(shard, ReplayShard.replay)

Values come back as ``Ref``: they may lie in another process until ``get``, and a ``Ref`` given as an
argument travels by reference, not through the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Actor(Generic[A]):
    """A placed object. Only the pool that placed it looks inside."""

    name: str
    handle: Any


@dataclass(frozen=True, eq=False)
class Ref(Generic[R]):
    """A value that a pool holds. Only that pool looks inside."""

    handle: Any


@dataclass(frozen=True)
class Resources:
    """What an actor reserves while it lives; 0 CPUs means that it shares what the others leave."""

    cpus: float
    gpus: float
    custom: Mapping[str, float] = field(default_factory=dict)
    """Amounts of the cluster's own resources, by name."""


@dataclass(frozen=True, eq=False)
class Completed(Generic[A, R]):
    """A finished call: the actor that ran it and its result, or one ref per part of a tuple."""

    actor: Actor[A]
    refs: tuple[Ref[Any], ...]

    @property
    def ref(self) -> Ref[R]:
        """The result of a call with one return value."""
        return self.refs[0]


class TaskPool(Protocol):
    """Places objects, calls them, and waits for them. Owned by one thread, which also stops it."""

    def place(
        self, name: str, resources: Resources, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        """Construct ``make(*args, **kwargs)`` where this pool runs things; ``make`` is a class."""
        ...

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        """Start one call that nobody waits for in a lane; calls to one actor run in the order made."""
        ...

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        """Start one call of a lane (see ``Lane.submit``)."""
        ...

    def put(self, value: R) -> Ref[R]:
        """Hold a value so that it is sent once and shared by all who get its ref."""
        ...

    def get(self, ref: Ref[R], timeout: float) -> R:
        """Return a value within ``timeout`` seconds; raises TimeoutError, or what the call raised."""
        ...

    def wait(self, timeout: float) -> bool:
        """Return once a call of any lane has completed, or after ``timeout`` seconds; False if none is in flight."""
        ...

    def stop(self) -> None:
        """End every placed object; idempotent."""
        ...


class Lane:
    """The calls of one purpose (sampling, replaying, ...): what is in flight, and what has come back."""

    def __init__(self, pool: TaskPool, num_returns: int = 1) -> None:
        """Calls of this lane return a tuple of ``num_returns`` parts, each with a ref of its own."""
        self.num_returns = num_returns
        self._pool = pool
        self._in_flight: Counter[Actor[Any]] = Counter()
        self._completed: list[Completed[Any, Any]] = []

    def submit(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> None:
        """Start ``method`` on ``actor``; its result appears in ``completed``."""
        self._in_flight[actor] += 1
        self._pool.start(self, actor, method, args)

    def in_flight(self, actor: Actor[Any]) -> int:
        """Calls on ``actor`` that have not been returned by ``completed`` yet."""
        return self._in_flight[actor]

    def completed(self) -> list[Completed[Any, Any]]:
        """Return what has finished since the last call, oldest first; never blocks."""
        done, self._completed = self._completed, []
        for call in done:
            self._in_flight[call.actor] -= 1
        return done

    def deliver(self, call: Completed[Any, Any]) -> None:
        """Take a finished call from the pool."""
        self._completed.append(call)


class InlineTaskPool:
    """Runs every call at once, in the caller's thread."""

    def place(
        self, name: str, resources: Resources, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        return Actor(name, make(*args, **kwargs))

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        return Ref(getattr(actor.handle, method.__name__)(*_unwrap(args)))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        result = getattr(actor.handle, method.__name__)(*_unwrap(args))
        parts = result if lane.num_returns > 1 else (result,)
        lane.deliver(Completed(actor, tuple(Ref(part) for part in parts)))

    def put(self, value: R) -> Ref[R]:
        return Ref(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        value: R = ref.handle
        return value

    def wait(self, timeout: float) -> bool:
        return True

    def stop(self) -> None:
        return None


class RayTaskPool:
    """Runs objects as Ray actors that die with the process that owns this pool."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._actors: list[Any] = []
        self._pending: dict[Any, tuple[Lane, Completed[Any, Any]]] = {}

    def place(
        self, name: str, resources: Resources, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        remote = self._ray.remote(
            num_cpus=resources.cpus, num_gpus=resources.gpus, resources=dict(resources.custom), max_restarts=0
        )(make)
        handle = remote.remote(*args, **kwargs)
        self._actors.append(handle)
        return Actor(name, handle)

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        return Ref(getattr(actor.handle, method.__name__).remote(*_unwrap(args)))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        remote = getattr(actor.handle, method.__name__)
        if lane.num_returns > 1:
            refs = remote.options(num_returns=lane.num_returns).remote(*_unwrap(args))
        else:
            refs = [remote.remote(*_unwrap(args))]
        # A call's parts become ready together, so the last one stands for all.
        self._pending[refs[-1]] = (lane, Completed(actor, tuple(Ref(ref) for ref in refs)))

    def put(self, value: R) -> Ref[R]:
        return Ref(self._ray.put(value))

    def get(self, ref: Ref[R], timeout: float) -> R:
        value: R = self._ray.get(ref.handle, timeout=timeout)
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


def _unwrap(args: tuple[object, ...]) -> list[object]:
    return [arg.handle if isinstance(arg, Ref) else arg for arg in args]
