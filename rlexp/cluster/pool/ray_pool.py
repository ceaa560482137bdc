"""RayTaskPool: each object in a separate process. RayCalls delivers the completed calls of its lanes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import psutil

from rlexp.cluster.pool.nodes import ClusterWatch, RayTables, own_node
from rlexp.cluster.pool.pool import (
    Actor,
    ActorLostError,
    ArgumentLostError,
    ClusterState,
    Completed,
    InlineTaskPool,
    Lane,
    Ref,
    Resources,
    unwrapped,
)
from rlexp.errors import TrialError

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

ARGUMENT_TIMEOUT_S = 60.0
"""Most seconds to wait for an argument of a call in this process; the argument's own call has completed before."""
MANY_CALLS = 100
"""Calls in flight from which on Ray reports each completion, as asking about all takes longer with each call.

With fewer, asking is faster: a report has to wake one more thread.
"""
FETCH_WAIT_S = 0.01
"""Most seconds to wait for results on their way to this node, while other calls may complete."""


@dataclass(eq=False)
class Call:
    """A call in flight."""

    lane: Lane
    completed: Completed[Any, Any]
    awaited: Any
    """The ref that shows completion, as Ray makes all parts of a result ready together."""
    has_ended: bool = False


class RayCalls:
    """Delivers completed calls to their lanes; calls of one actor in the order made.

    If results are fetched, a call completes when its first part is on this node, or is known to be lost. So neither a
    ``get`` nor a call with it as an argument waits for another node. Owned by one thread; only ``_report`` is called in
    another.
    """

    def __init__(self, wait: Callable[..., tuple[list[Any], list[Any]]]) -> None:
        """Initialise; ``wait`` is Ray's own: it returns the ready ones of a list of refs, and the rest."""
        self.fetches = False
        """Whether there are other nodes, from which results have to be fetched."""
        self._wait = wait
        self._by_actor: dict[Actor[Any], deque[Call]] = {}
        self._awaited: dict[Any, Call] = {}
        self._is_reported = False
        self._reports: deque[Call] = deque()
        self._has_reports = threading.Condition()

    def add(self, lane: Lane, completed: Completed[Any, Any]) -> None:
        refs = completed.refs
        fetched_first = self.fetches and not self._is_reported
        call = Call(lane, completed, refs[0 if fetched_first else -1].handle)
        self._by_actor.setdefault(completed.actor, deque()).append(call)
        if self._is_reported:
            call.awaited._on_completed(partial(self._report, call))
            return
        self._awaited[call.awaited] = call
        if len(self._awaited) > MANY_CALLS:
            self._let_ray_report()

    def wait(self, timeout: float) -> bool:
        """Return when a call has completed, or after ``timeout`` seconds; False if none is in flight."""
        if not self._by_actor:
            return False
        if self._is_reported:
            self._take_reports(timeout)
        else:
            self._ask(timeout)
        return True

    def forget(self, actor: Actor[Any]) -> None:
        for call in self._by_actor.pop(actor, ()):
            self._awaited.pop(call.awaited, None)

    def clear(self) -> None:
        self._by_actor.clear()
        self._awaited.clear()
        self._reports.clear()

    def _ask(self, timeout: float) -> None:
        """Ask Ray for completed calls, with one check of all that are awaited."""
        refs = list(self._awaited)
        ready, _ = self._wait(refs, num_returns=1, timeout=timeout, fetch_local=self.fetches)
        if ready:
            ready, _ = self._wait(refs, num_returns=len(refs), timeout=0, fetch_local=self.fetches)
        for ref in ready:
            self._end(self._awaited.pop(ref))

    def _let_ray_report(self) -> None:
        """Let Ray report each call from now on."""
        self._is_reported = True
        calls, self._awaited = list(self._awaited.values()), {}
        for call in calls:
            call.awaited = call.completed.refs[-1].handle  # the smallest part, as Ray reads it to report it
            call.awaited._on_completed(partial(self._report, call))

    def _report(self, call: Call, _: object) -> None:
        """Note that a call has completed; Ray calls this in a thread of its own, in any order."""
        with self._has_reports:
            self._reports.append(call)
            self._has_reports.notify()

    def _take_reports(self, timeout: float) -> None:
        if self._awaited:  # in reported mode: parts that are being fetched
            timeout = min(timeout, FETCH_WAIT_S)
        with self._has_reports:
            if not self._reports:
                self._has_reports.wait(timeout)
        while self._reports:
            call = self._reports.popleft()
            if not self.fetches:
                self._end(call)
            elif call.completed.actor in self._by_actor:
                call.awaited = call.completed.refs[0].handle
                self._awaited[call.awaited] = call
        if self._awaited:
            self._ask(0)

    def _end(self, call: Call) -> None:
        """Deliver a call, and the calls of its actor that had to wait for it."""
        call.has_ended = True
        actor = call.completed.actor
        queue = self._by_actor.get(actor)
        while queue and queue[0].has_ended:
            ended = queue.popleft()
            ended.lane.deliver(ended.completed)
        if queue is not None and not queue:
            del self._by_actor[actor]


NICENESS = 10
"""Added to the niceness of an actor that gives way."""
CALL = "__ray_call__"
"""Ray's own method of every actor, which calls a function with the object."""


@dataclass(frozen=True, eq=False)
class Failed:
    """The handle of a Ref without a result: the call could not be made, as an argument was lost."""

    error: ArgumentLostError


def actor_options(resources: Resources) -> dict[str, Any]:
    """Return Ray's options for an actor with these resources."""
    options: dict[str, Any] = {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        "resources": dict(resources.custom),
        "max_restarts": 0,
    }
    if resources.outside_group:  # otherwise Ray places what a trial makes within the trial's group
        options["scheduling_strategy"] = "DEFAULT"
    elif resources.bundle is not None:
        from ray.util import get_current_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if (group := get_current_placement_group()) is not None:
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=resources.bundle)
            options["scheduling_strategy"] = strategy
    return options


@contextmanager
def errors_translated() -> Iterator[None]:
    """Raise Ray's errors about lost processes and values as the pool's own.

    An error within a call, which Ray marks as RayTaskError, shows that the called object lives, so an argument was
    lost.
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
            raise TrialError(str(error).strip().splitlines()[-1]) from error  # the rest is a traceback
        raise ActorLostError("its process died") from error


@dataclass(frozen=True)
class Process:
    """One of Ray's processes, distinct from every other one, although hosts may share a name and pids are reused."""

    node_id: str
    pid: int
    started: str
    """Start time by its node's clock; empty if the system does not tell."""


def whereabouts(actor: object) -> Process:
    """Return the process of ``actor``, which calls this."""
    return Process(own_node().id, os.getpid(), _started(os.getpid()))


def give_way(actor: object) -> Process:
    """Lower the priority of the process of ``actor``, which calls this, and return it."""
    os.nice(NICENESS)
    return whereabouts(actor)


def kill_here(process: Process) -> None:
    """Kill one of Ray's processes if it is on this node, unless its pid belongs to an unrelated one now.

    Ray asks a process to end, which a hanging or stopped one ignores; on another node only Ray can end it.
    """
    if process.node_id != own_node().id:
        return
    try:
        found = psutil.Process(process.pid)
        title = "".join(found.cmdline()[:1])  # read once, as an ending process loses it meanwhile
        if title.startswith("ray::") and _started(process.pid) == process.started:
            found.kill()
    except psutil.NoSuchProcess:
        return


def _started(pid: int) -> str:
    """Return the start time of a process in ticks since the system's start, which clock changes do not affect."""
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")
        return fields.split()[19]
    except (OSError, IndexError):
        return ""


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
        self._actors[actor] = handle, getattr(handle, CALL).remote(give_way if resources.gives_way else whereabouts)
        self._watch.add(actor)
        self._calls.fetches = self._watch.sees_several_nodes
        return actor

    def call(self, actor: Actor[A], method: Callable[Concatenate[A, ...], R], *args: object) -> Ref[R]:
        if actor.is_here:
            return self._here.call(actor, method, *self._fetched(args))
        return Ref(getattr(actor.handle, method.__name__).remote(*unwrapped(args)))

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if actor.is_here:
            try:
                values = self._fetched(args)
            except ArgumentLostError as error:  # reported as for an object elsewhere: when the result is used
                lane.deliver(Completed(actor, (Ref(Failed(error)),) * lane.num_returns))
            else:
                self._here.start(lane, actor, method, values)
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

    def _fetched(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self.get(arg, ARGUMENT_TIMEOUT_S) if isinstance(arg, Ref) else arg for arg in args)
