"""One worker's place in a fleet: what it did, how often it failed, when it is replaced, and nodes lost with it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rlexp.cluster.pool.pool import Actor
from rlexp.errors import RlexpError
from rlexp.rollout.worker import RolloutWorker

PlaceWorker = Callable[[int, int], Actor[RolloutWorker]]
"""Places the worker of an index anew; its attempt, 0 at first, sets its random streams apart."""

FAILURES_IN_A_ROW = 3
"""After so many errors in a row without a fragment in between, the trial fails with the last one."""
WINDOW_S, FAILURES_IN_WINDOW = 300.0, 10
"""A worker that fails more often within so long is removed."""
START_S = 60.0
"""Extra time for a worker's first fragment, in which its process starts and makes the envs."""
STEADY_S = 10.0
"""A worker that has delivered for so long was lost by accident: its replacement comes at once."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Before the replacement of one that was lost sooner, as its predecessor was, doubled each time."""
SUSPECTED_S = 90.0
"""How long a lost process may turn out to have been lost with its node, which Ray notices up to a minute late."""


@dataclass(frozen=True)
class FleetLimits:
    """Limits on failures, beyond which a worker, or all of them, are removed."""

    max_restarts: int
    """Of all workers together, by one process of the trial."""
    sample_timeout_s: float
    """A worker that needs longer for a fragment hangs."""


@dataclass(frozen=True)
class FleetWords:
    """How events call the members of a fleet."""

    name_of: Callable[[int], str]
    """Returns the name of the member of an index."""
    num_workers_of: Callable[[int], int] = lambda index: 1
    """Returns how many rollout workers are lost with the member of an index."""


OF_WORKERS = FleetWords("worker {}".format)


@dataclass
class WorkerSlot:
    """One worker's place in the fleet."""

    index: int
    actor: Actor[RolloutWorker] | None = None
    """None while it waits for its replacement, and once it is removed."""
    answered_s: float = 0.0
    """When it delivered last, was asked first or was given room."""
    attempt: int = 0
    first_delivery_s: float | None = None
    short_lives: int = 0
    """Losses in a row of replacements that had not been steady."""
    failures: int = 0
    """Errors since its last fragment."""
    failed_at_s: deque[float] = field(default_factory=deque)
    """When it was lost, within the window; not those times when its node was lost."""
    lost: str = ""
    """Why, until its replacement delivers."""
    lost_node: str = ""
    """The node that it was lost with, until its replacement delivers."""
    replace_at_s: float | None = None
    restart: int = 0
    """The number of its last replacement, among those of all workers."""

    @property
    def is_removed(self) -> bool:
        """Whether it is not replaced any more."""
        return self.actor is None and self.replace_at_s is None

    def delivered(self, now: float) -> None:
        """Note that a fragment has come."""
        self.answered_s = now
        self.failures = 0
        if self.first_delivery_s is None:
            self.first_delivery_s = now

    def hangs_at_s(self, limits: FleetLimits) -> float:
        """Return when it counts as hanging if it is asked and delivers nothing."""
        return self.answered_s + self.timeout_s(limits)

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
        """Return how long its replacement waits, in seconds: longer with each that was not steady."""
        if self.first_delivery_s is not None and now - self.first_delivery_s >= STEADY_S:
            self.short_lives = 0
        self.short_lives += 1
        return 0.0 if self.short_lives == 1 else min(FIRST_DELAY_S * 2.0 ** (self.short_lives - 2), LONGEST_DELAY_S)


def last_line(error: Exception) -> str:
    """Return what was raised in the worker, without the layers that carried it."""
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
    """The indices of those that were lost with it."""
    missing: set[int] = field(default_factory=set)
    """Those of them that have not delivered since."""


class WorkerLosses:
    """Writes one event when members of a fleet are lost with a node, and one when all of them are back."""

    def __init__(self, num_workers_of: Callable[[int], int]) -> None:
        """``num_workers_of`` returns how many workers are lost with the member of an index."""
        self._num_workers_of = num_workers_of
        self._losses: dict[str, NodeLoss] = {}

    def lost(self, members: Sequence[tuple[str, int]], ends_soon: bool, now: float) -> list[str]:
        """Return an event for each node of ``members``, which are pairs of a node and a member's index."""
        by_node: defaultdict[str, set[int]] = defaultdict(set)
        for node, index in members:
            by_node[node].add(index)
        return [self._lost(node, indices, ends_soon, now) for node, indices in by_node.items()]

    def back(self, node: str, index: int, now: float) -> list[str]:
        """Return an event if the member was the last of ``node`` that was missing."""
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
