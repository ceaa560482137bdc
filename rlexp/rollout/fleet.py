"""Fleet: the rollout workers in other processes, which are replaced when they fail."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from rlexp.cluster.pool.pool import Actor, ActorLostError, ArgumentLostError, ClusterState, TaskPool
from rlexp.errors import CallbackError, RlexpError, TrialError
from rlexp.rollout.worker import SamplingWorker

Worker = Actor[SamplingWorker]
PlaceWorker = Callable[[int, int], Worker]
"""A function that places the worker of an index anew. Its attempt (0 at first) selects other random streams."""

FAILURES_IN_A_ROW = 3
"""The trial fails with the last error after so many errors in a row without a fragment."""
WINDOW_S, FAILURES_IN_WINDOW = 300.0, 10
"""A worker is removed if it fails more often than this within this window of seconds."""
START_S = 60.0
"""Extra seconds for a worker's first fragment, in which its process starts and makes the envs."""
STEADY_S = 10.0
"""Seconds after which a lost worker or replay shard counts as steady: its replacement comes at once."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Seconds before an unsteady one is replaced; doubled after each unsteady life, up to the longest delay."""
SUSPECTED_S = 90.0
"""Seconds in which a lost process may turn out to be lost with its node. Ray reports a node up to a minute late."""
RECHECK_S = 1.0
"""Seconds between two checks of a worker that may take longer for its first fragment."""


@dataclass(frozen=True)
class FleetLimits:
    """Limits on failures, beyond which a worker, or all of them, are removed."""

    max_restarts: int
    """Most restarts of all workers together, in one process of the trial."""
    sample_timeout_s: float
    """Seconds after which a worker without a fragment counts as hanging."""


@dataclass
class WorkerSlot:
    """One worker's place in the fleet: its deliveries, its failures and when it is replaced."""

    index: int
    actor: Worker | None = None
    """None while it waits for its replacement, and after it was removed."""
    answered_s: float = 0.0
    """When it last delivered, was first asked, or was given room."""
    attempt: int = 0
    first_delivery_s: float | None = None
    short_lives: int = 0
    """Number of unsteady replacements in a row."""
    failures: int = 0
    """Errors since its last fragment."""
    failed_at_s: deque[float] = field(default_factory=deque)
    """Times of its losses within the window, except losses with its node."""
    lost: str = ""
    """Reason of its loss; set until its replacement delivers."""
    lost_node: str = ""
    """The node that was lost with it; set until its replacement delivers."""
    replace_at_s: float | None = None
    """When its replacement is due; None while it has an actor, and after it was removed for good."""
    restart: int = 0
    """The number of its last restart, counted over all workers."""

    def failed(self, now: float) -> int:
        """Note a failure; return how many there were within the window."""
        while self.failed_at_s and now - self.failed_at_s[0] > WINDOW_S:
            self.failed_at_s.popleft()
        self.failed_at_s.append(now)
        return len(self.failed_at_s)

    def next_delay_s(self, now: float) -> float:
        """Return the seconds until its replacement; more after each unsteady one."""
        if self.first_delivery_s is not None and now - self.first_delivery_s >= STEADY_S:
            self.short_lives = 0
        self.short_lives += 1
        return replacement_delay_s(self.short_lives)


def replacement_delay_s(short_lives: int) -> float:
    """Return the seconds until the replacement of what was unsteady so often in a row."""
    return 0.0 if short_lives < 2 else min(FIRST_DELAY_S * 2.0 ** (short_lives - 2), LONGEST_DELAY_S)


@dataclass(frozen=True)
class Suspect:
    """A lost process that may have been lost with its node."""

    member: WorkerSlot
    failed_at_s: float
    is_counted: bool
    """Whether it was counted as a restart."""

    def is_over(self, now: float) -> bool:
        """Return whether it is too late to find out that its node was lost."""
        return now - self.failed_at_s > SUSPECTED_S


@dataclass
class NodeLoss:
    """One lost node."""

    lost_at_s: float
    lost: set[int] = field(default_factory=set)
    """The indices of the members that were lost with it."""
    missing: set[int] = field(default_factory=set)
    """The members that have not delivered since."""


class WorkerLosses:
    """Writes one event when members of a fleet are lost with a node, and one when all of them are back."""

    def __init__(self, num_workers_of: Callable[[int], int]) -> None:
        """``num_workers_of`` returns how many workers are lost with the member of an index."""
        self._num_workers_of = num_workers_of
        self._losses: dict[str, NodeLoss] = {}

    def lost(self, members: Sequence[tuple[str, int]], ends_soon: bool, now: float) -> list[str]:
        """Return an event for each node in ``members``, which are pairs of a node and a member's index."""
        by_node: defaultdict[str, set[int]] = defaultdict(set)
        for node, index in members:
            by_node[node].add(index)
        return [self._lost(node, indices, ends_soon, now) for node, indices in by_node.items()]

    def back(self, node: str, index: int, now: float) -> list[str]:
        """Return an event if the member was the last missing one of ``node``."""
        loss = self._losses.get(node)
        if loss is None:
            return []
        loss.missing.discard(index)
        if loss.missing:
            return []
        del self._losses[node]
        return [f"{self._workers(loss.lost)} of node {node} came back after {now - loss.lost_at_s:.1f} s"]

    def _lost(self, node: str, indices: set[int], ends_soon: bool, now: float) -> str:
        loss = self._losses.setdefault(node, NodeLoss(now))
        loss.missing |= indices
        loss.lost = set(loss.missing)
        if ends_soon:
            return f"node {node} ends soon: its {self._workers(indices)} move to others when there is room"
        return f"node {node} is lost with {self._workers(indices)}: they come back when there is room"

    def _workers(self, indices: Iterable[int]) -> str:
        count = sum(map(self._num_workers_of, indices))
        return f"{count} worker" if count == 1 else f"{count} workers"


class Fleet:
    """Owns the workers' places: replaces workers that fail, up to a limit, and with a delay if they fail early.

    A worker that is lost with its node, or whose node ends soon, is placed anew without counting as a restart. It gets
    no requests until a node has room for it. The pool forgets the calls of a removed actor. So no step is counted
    twice, and a late result of a stalled actor is never used. Owned by one thread. The cost of a step does not depend
    on the number of workers.
    """

    def __init__(
        self,
        pool: TaskPool,
        place: PlaceWorker,
        num_workers: int,
        limits: FleetLimits,
        clock: Callable[[], float] = time.monotonic,
        name_of: Callable[[int], str] = "worker {}".format,
        num_workers_of: Callable[[int], int] = lambda index: 1,
    ) -> None:
        """Place ``num_workers``; ``clock`` returns seconds that only grow.

        In events, ``name_of`` names the member of an index; with it ``num_workers_of`` rollout workers are lost.
        """
        self.num_workers = num_workers
        """Places for workers, including workers that were removed or wait for their replacement."""
        self._num_restarts = 0
        self._pool = pool
        self._place = place
        self._limits = limits
        self._clock = clock
        self._events: list[str] = []
        self._name_of = name_of
        self._node_losses = WorkerLosses(num_workers_of)
        self._state_of_nodes: ClusterState | None = None
        self._state_of_room: ClusterState | None = None
        self._members = [WorkerSlot(index) for index in range(num_workers)]
        self._with_room: dict[Worker, WorkerSlot] = {}
        self._without_room: dict[Worker, WorkerSlot] = {}
        self._suspects: dict[Worker, Suspect] = {}
        # Heaps of (time, index of a member): when a replacement is due, and when a worker counts as hanging.
        self._due: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, int]] = []
        for member in self._members:
            self._place_member(member)

    @property
    def num_restarts(self) -> int:
        """Number of replacements of failed workers; it never decreases.

        A worker that may have been lost with its node is counted only when that can no longer be found out.
        """
        now, suspects = self._clock(), self._suspects.values()
        return self._num_restarts - sum(each.is_counted and not each.is_over(now) for each in suspects)

    def __iter__(self) -> Iterator[Worker]:
        """Return the workers that take requests."""
        return iter(tuple(self._with_room))

    def drain_events(self) -> list[str]:
        """Return the events of workers since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def asked(self, worker: Worker) -> None:
        """Note that ``worker``, which was idle, was asked for a fragment."""
        self._with_room[worker].answered_s = self._clock()

    def delivered(self, worker: Worker) -> None:
        """Note that ``worker`` has delivered a fragment."""
        member, now = self._with_room[worker], self._clock()
        member.answered_s, member.failures = now, 0
        if member.first_delivery_s is None:
            member.first_delivery_s = now
        if member.lost_node:
            self._events += self._node_losses.back(member.lost_node, member.index, now)
            member.lost_node = ""
        if member.lost:
            took_s = now - member.failed_at_s[-1]
            restart = f"restart {member.restart} of at most {self._limits.max_restarts}"
            self._events.append(f"{self._name_of(member.index)} {member.lost}; replaced in {took_s:.1f} s ({restart})")
            member.lost = ""

    def failed(self, worker: Worker, error: Exception) -> None:
        """Note that a call of ``worker`` raised. Raise ``error`` after too many failures in a row.

        An error of the user's callbacks is raised at once, as a replacement would fail again.
        """
        if isinstance(error, CallbackError) or isinstance(getattr(error, "cause", None), CallbackError):
            raise error
        member = self._with_room[worker]
        if isinstance(error, (ActorLostError, ArgumentLostError)):
            if worker not in self._pool.cluster_state().lost:  # else remove_lost_workers handles all of its node
                self._suspect(member, f"failed: {error.message}", self._clock())
            return
        member.failures += 1
        if member.failures >= FAILURES_IN_A_ROW:
            raise error
        self._handle_failure(member, f"failed: {last_line(error)}", self._clock())

    def remove_lost_workers(self, is_asked: Callable[[Worker], bool]) -> list[Worker]:
        """Remove and return workers whose fragment is overdue or whose node ends."""
        return self._remove_workers_of_nodes() + self._remove_hung_workers(is_asked)

    def take_new_workers(self) -> list[Worker]:
        """Place anew the workers whose delay is over. Return the workers that got room since the last call."""
        now, num_placed = self._clock(), 0
        while self._due and self._due[0][0] <= now:
            due_s, index = heappop(self._due)
            member = self._members[index]
            if member.replace_at_s == due_s:
                member.attempt += 1
                self._place_member(member)
                num_placed += 1
        if not self._without_room or (not num_placed and self._pool.cluster_state() is self._state_of_room):
            return []
        self._state_of_room = state = self._pool.cluster_state()
        new = [worker for worker in self._without_room if state.has_room(worker)]
        for worker in new:
            member = self._with_room[worker] = self._without_room.pop(worker)
            member.answered_s = now
            heappush(self._deadlines, (now + self._limits.sample_timeout_s, member.index))
        return new

    def stop(self) -> None:
        """Forget every worker; the pool ends them."""
        self._members = []
        for workers in (self._with_room, self._without_room, self._suspects):
            workers.clear()
        self._due, self._deadlines = [], []

    def _place_member(self, member: WorkerSlot) -> None:
        actor = self._place(member.index, member.attempt)
        member.actor, member.first_delivery_s, member.replace_at_s = actor, None, None
        self._without_room[actor] = member

    def _remove_hung_workers(self, is_asked: Callable[[Worker], bool]) -> list[Worker]:
        now, hanging = self._clock(), []
        while self._deadlines and self._deadlines[0][0] < now:
            member = self._members[heappop(self._deadlines)[1]]
            worker = member.actor
            if worker not in self._with_room or worker is None:
                continue  # its replacement has a deadline of its own
            timeout_s = self._limits.sample_timeout_s + (START_S if member.first_delivery_s is None else 0)
            if not is_asked(worker):
                member.answered_s = now
            elif member.answered_s + timeout_s < now:
                hanging.append(worker)
                self._suspect(member, f"delivered nothing for {timeout_s:g} s (sample_timeout_s)", now)
                continue
            deadline_s = max(member.answered_s + self._limits.sample_timeout_s, now + RECHECK_S)
            heappush(self._deadlines, (deadline_s, member.index))
        return hanging

    def _remove_workers_of_nodes(self) -> list[Worker]:
        """Remove the workers whose nodes were lost, or end soon, since the last call."""
        state = self._pool.cluster_state()
        if state is self._state_of_nodes:
            return []
        self._state_of_nodes = state
        there = {**self._with_room, **self._without_room}
        lost = [(node, there[worker]) for worker, node in state.lost.items() if worker in there]
        draining = [(node, there[worker]) for worker, node in state.draining.items() if worker in there]
        workers = [member.actor for _, member in lost + draining if member.actor is not None]
        for _, member in lost + draining:
            self._take_away(member)
        self._lose_with_node(lost + self._forgive_suspects(state), ends_soon=False)
        self._lose_with_node(draining, ends_soon=True)
        return workers

    def _forgive_suspects(self, state: ClusterState) -> list[tuple[str, WorkerSlot]]:
        """Return the workers that turn out to have been lost with their node, and do not count their restarts."""
        now, forgiven = self._clock(), []
        for worker, suspect in tuple(self._suspects.items()):
            node, member = state.lost.get(worker), suspect.member
            if node is None and not suspect.is_over(now):
                continue
            del self._suspects[worker]
            if node is not None and not suspect.is_over(now):
                self._num_restarts -= suspect.is_counted
                if suspect.failed_at_s in member.failed_at_s:
                    member.failed_at_s.remove(suspect.failed_at_s)
                forgiven.append((node, member))
        return forgiven

    def _lose_with_node(self, lost: list[tuple[str, WorkerSlot]], ends_soon: bool) -> None:
        """Place anew the workers that nodes have taken with them, without counting restarts."""
        now = self._clock()
        for node, member in lost:
            member.lost, member.lost_node, member.short_lives = "", node, 0
            if member.actor is None:  # else its replacement runs or waits already
                self._replace_at(member, now)
        self._events += self._node_losses.lost([(node, member.index) for node, member in lost], ends_soon, now)

    def _take_away(self, member: WorkerSlot) -> None:
        assert member.actor is not None
        self._pool.remove(member.actor)
        self._with_room.pop(member.actor, None)
        self._without_room.pop(member.actor, None)
        member.actor = None

    def _replace_at(self, member: WorkerSlot, due_s: float) -> None:
        member.replace_at_s = due_s
        heappush(self._due, (due_s, member.index))

    def _suspect(self, member: WorkerSlot, why: str, now: float) -> None:
        """Handle a failure that may be a failure of the worker's node."""
        worker, num_before = member.actor, self._num_restarts
        assert worker is not None
        self._handle_failure(member, why, now)
        if self._pool.cluster_state().placed is not None:
            self._suspects[worker] = Suspect(member, now, self._num_restarts > num_before)

    def _handle_failure(self, member: WorkerSlot, why: str, now: float) -> None:
        self._take_away(member)
        member.lost = why
        if member.failed(now) > FAILURES_IN_WINDOW or self._num_restarts >= self._limits.max_restarts:
            self._remove(member, why)
            return
        self._num_restarts += 1
        member.restart = self._num_restarts
        self._replace_at(member, now + member.next_delay_s(now))

    def _remove(self, member: WorkerSlot, why: str) -> None:
        member.replace_at_s = None
        num_left = sum(each.actor is not None or each.replace_at_s is not None for each in self._members)
        if not num_left:
            raise TrialError(
                f"every rollout worker was removed; the last one {why}",
                f"a worker is removed after more than {FAILURES_IN_WINDOW} failures in {WINDOW_S / 60:g} minutes,"
                f" all after {self._limits.max_restarts} restarts (max_num_worker_restarts)",
            )
        limit = f"since all {self._limits.max_restarts} restarts are used (max_num_worker_restarts)"
        if len(member.failed_at_s) > FAILURES_IN_WINDOW:
            limit = f"after {len(member.failed_at_s)} failures in {WINDOW_S / 60:g} minutes"
        self._events.append(
            f"{self._name_of(member.index)} {why}; removed {limit}, {num_left} of {len(self._members)} continue"
        )


def last_line(error: Exception) -> str:
    """Return the last line of the error that was raised in the worker, without the layers that carried it."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, RlexpError):
        return cause.message
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
