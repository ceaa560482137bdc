"""One worker's place in a fleet: its deliveries, failures, replacement time, and the nodes lost with it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rlexp.cluster.pool.pool import Actor
from rlexp.errors import RlexpError
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
"""Seconds after which a lost worker counts as steady: its replacement comes at once."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Seconds before an unsteady worker is replaced; doubled after each unsteady life, up to the longest delay."""
SUSPECTED_S = 90.0
"""Seconds in which a lost process may turn out to be lost with its node. Ray reports a node up to a minute late."""


@dataclass(frozen=True)
class FleetLimits:
    """Limits on failures, beyond which a worker, or all of them, are removed."""

    max_restarts: int
    """Most restarts of all workers together, in one process of the trial."""
    sample_timeout_s: float
    """Seconds after which a worker without a fragment counts as hanging."""


@dataclass
class WorkerSlot:
    """One worker's place in the fleet."""

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

    def delivered(self, now: float) -> None:
        """Note that a fragment has arrived."""
        self.answered_s = now
        self.failures = 0
        if self.first_delivery_s is None:
            self.first_delivery_s = now

    def timeout_s(self, limits: FleetLimits) -> float:
        """Return how long its next fragment may take, in seconds."""
        return limits.sample_timeout_s + (START_S if self.first_delivery_s is None else 0)

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
        return 0.0 if self.short_lives == 1 else min(FIRST_DELAY_S * 2.0 ** (self.short_lives - 2), LONGEST_DELAY_S)


def last_line(error: Exception) -> str:
    """Return the last line of the error that was raised in the worker, without the layers that carried it."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, RlexpError):
        return cause.message
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


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
