"""RayCalls: the calls of lanes that Ray runs elsewhere, and how their completion is noticed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlexp.task_pool.pool import Actor, Completed, Lane

MANY_CALLS = 100
"""With so many calls in flight Ray reports each as it completes, since asking for all of them takes longer with each.

With fewer, asking is faster: a report has to wake one more thread.
"""
FETCH_WAIT_S = 0.01
"""Longest wait for results on their way to this node, while other calls may complete."""

Wait = Callable[..., tuple[list[Any], list[Any]]]
"""Returns those of a list of refs that are ready, and the rest."""


@dataclass(eq=False)
class Call:
    """A call in flight."""

    lane: Lane
    completed: Completed[Any, Any]
    awaited: Any
    """The ref that shows that it has completed: Ray makes all parts of a result ready together."""
    has_ended: bool = False


class RayCalls:
    """Delivers calls to their lanes once they have completed, those of one actor in the order made.

    Where results are fetched, a call completes when its first part is on this node, or is known to be lost: so
    neither a ``get`` nor a call that is given it waits for another node. Owned by one thread; only ``_report`` is
    called in another.
    """

    def __init__(self, wait: Wait) -> None:
        """``wait`` is Ray's own."""
        self.fetches = False
        """Whether there are other nodes, from which results have to be fetched."""
        self._wait = wait
        self._by_actor: dict[Actor[Any], deque[Call]] = {}
        self._awaited: dict[Any, Call] = {}
        self._is_reported = False
        self._reports: deque[Call] = deque()
        self._has_reports = threading.Condition()

    def add(self, lane: Lane, completed: Completed[Any, Any]) -> None:
        """Expect a call that has been made."""
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
        """Return once a call has completed, or after ``timeout`` seconds; False if none is in flight."""
        if not self._by_actor:
            return False
        if self._is_reported:
            self._take_reports(timeout)
        else:
            self._ask(timeout)
        return True

    def forget(self, actor: Actor[Any]) -> None:
        """Deliver no more calls of ``actor``."""
        for call in self._by_actor.pop(actor, ()):
            self._awaited.pop(call.awaited, None)

    def clear(self) -> None:
        """Deliver no more calls."""
        self._by_actor.clear()
        self._awaited.clear()
        self._reports.clear()

    def _ask(self, timeout: float) -> None:
        """Ask Ray for calls that have completed, with one look at all that are awaited."""
        refs = list(self._awaited)
        ready, _ = self._wait(refs, num_returns=1, timeout=timeout, fetch_local=self.fetches)
        if ready:
            ready, _ = self._wait(refs, num_returns=len(refs), timeout=0, fetch_local=self.fetches)
        for ref in ready:
            self._end(self._awaited.pop(ref))

    def _let_ray_report(self) -> None:
        """From now on let Ray report each call."""
        self._is_reported = True
        calls, self._awaited = list(self._awaited.values()), {}
        for call in calls:
            call.awaited = call.completed.refs[-1].handle  # the smallest part: Ray reads it to report it
            call.awaited._on_completed(partial(self._report, call))

    def _report(self, call: Call, _: object) -> None:
        """Learn that a call has completed; Ray calls this in a thread of its own, in any order."""
        with self._has_reports:
            self._reports.append(call)
            self._has_reports.notify()

    def _take_reports(self, timeout: float) -> None:
        if self._awaited:  # in reported mode: what is being fetched
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
        """Deliver a call, and those of its actor that had to wait for it."""
        call.has_ended = True
        actor = call.completed.actor
        queue = self._by_actor.get(actor)
        while queue and queue[0].has_ended:
            ended = queue.popleft()
            ended.lane.deliver(ended.completed)
        if queue is not None and not queue:
            del self._by_actor[actor]
