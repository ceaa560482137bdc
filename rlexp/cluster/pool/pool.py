"""The protocol of all task pools, the calls in flight of one purpose, and the pool that runs every call at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from rlexp.errors import TrialError

GET_TIMEOUT_S = 60.0
"""Most seconds to wait for a result whose call has already completed."""

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Actor(Generic[A_co]):
    """A placed object; opaque except for the pool that placed it."""

    name: str
    handle: Any
    is_here: bool = True
    """Whether it is in this process; then calls to it run at once, in the caller's thread."""


class ActorLostError(TrialError):
    """Raised if the process of a placed object has died, so that no call to it will be answered."""


class ArgumentLostError(TrialError):
    """Raised if a value that a call returned or needed was lost with its process or node; the called object lives."""


@dataclass(frozen=True, eq=False)
class Ref(Generic[R]):
    """A value that a pool holds; opaque except for that pool."""

    handle: Any


@dataclass(frozen=True)
class Resources:
    """The resources that an actor reserves while it lives; 0 CPUs means that it shares what others leave."""

    cpus: float
    gpus: float
    custom: Mapping[str, float] = field(default_factory=dict)
    """Amounts of the cluster's own resources, by name."""
    bundle: int | None = None
    """Number of the bundle in the trial's placement group; None: any with room, or none if all amounts are 0."""
    outside_group: bool = False
    """Whether it is placed anywhere in the cluster with room, without a reservation of the trial."""
    gives_way: bool = False
    """Whether it runs at a lower priority, so that it never takes a core from what waits for one."""


@dataclass(frozen=True, eq=False)
class Completed(Generic[A, R]):
    """A finished call: the actor that ran it and its result, or one ref per part of a tuple."""

    actor: Actor[A]
    refs: tuple[Ref[Any], ...]

    @property
    def ref(self) -> Ref[R]:
        """The result of a call with one return value."""
        return self.refs[0]


@dataclass(frozen=True)
class ClusterState:
    """The places of a pool's actors, as far as the cluster has shown; replaced as a whole after a change."""

    placed: frozenset[Actor[Any]] | None = None
    """Actors with room on a node; None: there is only one node, and every actor counts as placed."""
    lost: Mapping[Actor[Any], str] = field(default_factory=dict)
    """Actors that were on a dead node, by the node's name; also some that were removed since."""
    draining: Mapping[Actor[Any], str] = field(default_factory=dict)
    """Actors on a node that will end soon, with its name."""

    def has_room(self, actor: Actor[Any]) -> bool:
        """Return whether ``actor`` runs or starts, so that it may get requests."""
        return self.placed is None or actor in self.placed


ONE_NODE = ClusterState()
"""The state without other nodes: no actor waits for a node, and none is lost."""


class TaskPool(Protocol):
    """Places objects, calls them, and waits for them. Owned by one thread, which also stops it."""

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        """Construct ``make(*args, **kwargs)`` in the pool's place for it; without ``resources`` in this process.

        ``make`` is a class.
        """

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        """Start one call outside of any lane; calls to one actor run in the order made.

        A failed call raises when its result is asked for, or here if the actor is in this process.
        """

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        """Start one call of a lane (see ``Lane.submit``)."""

    def put(self, value: R) -> Ref[R]:
        """Hold a value that is sent once and shared by all who get its ref."""

    def keep(self, value: R) -> Ref[R]:
        """Hold a value in this process for callers and objects here; it is sent anew to each one elsewhere."""

    def get(self, ref: Ref[R], timeout: float) -> R:
        """Return a value within ``timeout`` seconds.

        Raises TimeoutError, ActorLostError, ArgumentLostError, or the error of the call.
        """

    def wait(self, timeout: float) -> bool:
        """Return when a call of any lane has completed, or after ``timeout`` seconds; False if none is in flight."""

    def cluster_state(self) -> ClusterState:
        """Return the known state of the nodes; the same object as before if nothing has changed."""

    def remove(self, actor: Actor[Any]) -> None:
        """End one placed object, whatever it is doing, and forget its calls, so that none of them completes."""

    def stop(self) -> None:
        """End every placed object; idempotent."""


class Lane:
    """The calls of one purpose (sampling, replaying, ...): calls in flight, and completed ones."""

    def __init__(self, pool: TaskPool, num_returns: int = 1) -> None:
        """Initialise; calls of this lane return a tuple of ``num_returns`` parts, with one ref each."""
        self.num_returns = num_returns
        self._pool = pool
        self._in_flight: Counter[Actor[Any]] = Counter()
        self._completed: list[Completed[Any, Any]] = []

    def submit(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> None:
        """Start ``method`` on ``actor``; its result appears in ``completed``."""
        self._in_flight[actor] += 1
        self._pool.start(self, actor, method, args)

    def in_flight(self, actor: Actor[Any]) -> int:
        """Number of calls on ``actor`` that ``completed`` has not returned yet."""
        return self._in_flight[actor]

    def completed(self) -> list[Completed[Any, Any]]:
        """Return the calls that finished since the last call, oldest first; never blocks."""
        done, self._completed = self._completed, []
        for call in done:
            self._in_flight[call.actor] -= 1
        return done

    def forget(self, actor: Actor[Any]) -> None:
        """Drop completed calls of a removed actor, and expect no more."""
        self._in_flight.pop(actor, None)
        self._completed = [call for call in self._completed if call.actor is not actor]

    def deliver(self, call: Completed[Any, Any]) -> None:
        """Take a finished call from the pool."""
        self._completed.append(call)


class InlineTaskPool:
    """A TaskPool that runs every call at once, in the caller's thread."""

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        return Actor(name, make(*args, **kwargs))

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        return Ref(_result(actor, method, args))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        result = _result(actor, method, args)
        parts = result if lane.num_returns > 1 else (result,)
        lane.deliver(Completed(actor, tuple(Ref(part) for part in parts)))

    def put(self, value: R) -> Ref[R]:
        return Ref(value)

    def keep(self, value: R) -> Ref[R]:
        return Ref(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        value: R = ref.handle
        return value

    def wait(self, timeout: float) -> bool:
        return True

    def cluster_state(self) -> ClusterState:
        return ONE_NODE

    def remove(self, actor: Actor[Any]) -> None:
        return None

    def stop(self) -> None:
        return None


def _result(actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> Any:
    return getattr(actor.handle, method.__name__)(*unwrapped(args))


def unwrapped(args: tuple[object, ...]) -> list[object]:
    """Return arguments with the handle of each Ref in its place."""
    return [arg.handle if isinstance(arg, Ref) else arg for arg in args]
