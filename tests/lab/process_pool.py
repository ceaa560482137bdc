"""A TaskPool of plain processes: what needs several of them is tested without Ray."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlexp.cluster.pool.pool import ONE_NODE, Actor, ActorLostError, ClusterState, Completed, Lane, Ref, Resources

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

CONTEXT = multiprocessing.get_context("forkserver")
END_TIMEOUT_S = 10.0


@dataclass(eq=False)
class Call:
    """A call, whether it has ended, and how."""

    lane: Lane | None
    ended: bool = False
    value: Any = None
    error: Exception | None = None


@dataclass(eq=False)
class Place:
    """The process of an actor, and the calls that it has not answered, oldest first."""

    process: ForkServerProcess
    connection: Connection
    calls: list[tuple[Call, Actor[Any]]] = field(default_factory=list)


class ProcessTaskPool:
    """A TaskPool that runs each object in a process, forked from a server that has imported torch."""

    def __init__(self) -> None:
        CONTEXT.set_forkserver_preload(["rlexp.agents.torch.learners"])
        self._places: dict[Actor[Any], Place] = {}

    def actors(self) -> list[Actor[Any]]:
        """Return the objects that are there, in the order in which they were placed; their handle is the process."""
        return list(self._places)

    def place(
        self, name: str, resources: Resources | None, make: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> Actor[A]:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, make, args, kwargs), daemon=True)
        process.start()
        theirs.close()
        actor: Actor[A] = Actor(name, process.pid, is_here=False)
        self._places[actor] = Place(process, ours)
        return actor

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        return Ref(self._begin(None, actor, method, args))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        self._begin(lane, actor, method, args)

    def put(self, value: R) -> Ref[R]:
        return Ref(Call(None, ended=True, value=value))

    def keep(self, value: R) -> Ref[R]:
        return self.put(value)

    def get(self, ref: Ref[R], timeout: float) -> R:
        call, deadline = ref.handle, time.monotonic() + timeout
        while not call.ended:
            if time.monotonic() > deadline:
                raise TimeoutError
            self._receive(max(deadline - time.monotonic(), 0.0))
        if call.error is not None:
            raise call.error
        value: R = call.value
        return value

    def wait(self, timeout: float) -> bool:
        if not any(call.lane for place in self._places.values() for call, _ in place.calls):
            return False
        self._receive(timeout)
        return True

    def cluster_state(self) -> ClusterState:
        return ONE_NODE

    def remove(self, actor: Actor[Any]) -> None:
        place = self._places.pop(actor, None)
        if place is not None:
            place.process.kill()
            place.process.join(END_TIMEOUT_S)
            place.connection.close()

    def stop(self) -> None:
        for actor in list(self._places):
            self.remove(actor)

    def _begin(
        self, lane: Lane | None, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]
    ) -> Call:
        call, place = Call(lane), self._places[actor]
        place.calls.append((call, actor))
        try:
            place.connection.send((method.__name__, [self._value(arg) for arg in args]))
        except OSError:
            self._lose(place)
        return call

    def _value(self, arg: object) -> object:
        return self.get(arg, END_TIMEOUT_S) if isinstance(arg, Ref) else arg

    def _receive(self, timeout: float) -> None:
        """Take the answers that have come within ``timeout`` seconds, those of one moment."""
        by_connection = {place.connection: place for place in self._places.values() if place.calls}
        for connection in wait(list(by_connection), timeout):
            assert isinstance(connection, Connection)
            place = by_connection[connection]
            try:
                value, error = connection.recv()
            except (EOFError, OSError):
                self._lose(place)
                continue
            self._finish(place, value, error)

    def _lose(self, place: Place) -> None:
        while place.calls:
            self._finish(place, None, ActorLostError("its process died"))

    def _finish(self, place: Place, value: Any, error: Exception | None) -> None:
        call, actor = place.calls.pop(0)
        call.ended, call.value, call.error = True, value, error
        if call.lane is not None:
            several = call.lane.num_returns > 1
            values = value if several and error is None else (value,) * call.lane.num_returns
            parts: tuple[Ref[Any], ...] = tuple(Ref(Call(None, ended=True, value=part, error=error)) for part in values)
            call.lane.deliver(Completed(actor, parts))


def _serve(connection: Connection, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make the object and answer its calls, until the pool is gone."""
    made, failure = None, None
    try:
        made = make(*args, **kwargs)
    except Exception as error:
        failure = error
    while True:
        try:
            name, values = connection.recv()
        except EOFError:
            return
        try:
            if failure is not None:
                raise failure
            connection.send((getattr(made, name)(*values), None))
        except Exception as error:
            connection.send((None, error))
