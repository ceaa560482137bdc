"""One worker's place in a fleet: what it did, how often it failed, and when it is replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rlexp.errors import RlexpError
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import Actor

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
class Member:
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
