"""Fleet: the rollout workers in other processes, which are replaced when they fail."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rlexp.errors import RlexpError, TrialError
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import Actor, ActorLostError, TaskPool

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


@dataclass(frozen=True)
class FleetLimits:
    """Limits on failures, beyond which a worker, or all of them, are removed."""

    max_restarts: int
    """Of all workers together, by one process of the trial."""
    sample_timeout_s: float
    """A worker that needs longer for a fragment hangs."""


@dataclass
class Member:
    """One worker's place in the fleet."""

    index: int
    actor: Actor[RolloutWorker] | None
    """None while it waits for its replacement, and once it is removed."""
    answered_s: float
    """When it delivered last, was asked first or was placed."""
    attempt: int = 0
    first_delivery_s: float | None = None
    short_lives: int = 0
    """Losses in a row of replacements that had not been steady."""
    failures: int = 0
    """Errors since its last fragment."""
    failed_at_s: deque[float] = field(default_factory=deque)
    """When it was lost, within the window."""
    lost: str = ""
    """Why, until its replacement delivers."""
    replace_at_s: float | None = None
    restart: int = 0
    """The number of its last replacement, among those of all workers."""


class Fleet:
    """Owns the workers' places: replaces workers that fail, up to a limit, and with a delay if they fail early.

    The results of an actor that was removed are never used: the pool forgets its calls, so that no
    step can be counted twice, nor be taken from one that was only asleep. Owned by one thread.
    """

    def __init__(
        self,
        pool: TaskPool,
        place: PlaceWorker,
        num_workers: int,
        limits: FleetLimits,
        clock: Callable[[], float] = time.monotonic,
        name_of: Callable[[int], str] = "worker {}".format,
    ) -> None:
        """Place ``num_workers``; ``clock`` returns seconds that only grow. Events call them by ``name_of`` an index."""
        self.num_restarts = 0
        self._pool = pool
        self._place = place
        self._limits = limits
        self._clock = clock
        self._events: list[str] = []
        self._name_of = name_of
        self._members = [Member(index, place(index, 0), clock()) for index in range(num_workers)]

    def __iter__(self) -> Iterator[Actor[RolloutWorker]]:
        """Return the workers that are there."""
        return iter([member.actor for member in self._members if member.actor is not None])

    def drain_events(self) -> list[str]:
        """Return what happened to workers since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def delivered(self, worker: Actor[RolloutWorker]) -> None:
        """Learn that a fragment of ``worker`` has come."""
        member = self._member(worker)
        member.answered_s = self._clock()
        member.failures = 0
        if member.first_delivery_s is None:
            member.first_delivery_s = member.answered_s
        if member.lost:
            took_s = member.answered_s - member.failed_at_s[-1]
            restart = f"restart {member.restart} of at most {self._limits.max_restarts}"
            self._events.append(f"{self._name_of(member.index)} {member.lost}; replaced in {took_s:.1f} s ({restart})")
            member.lost = ""

    def failed(self, worker: Actor[RolloutWorker], error: Exception) -> None:
        """Learn that a call of ``worker`` raised; raises ``error`` when it is the last of too many in a row."""
        member = self._member(worker)
        if isinstance(error, ActorLostError):
            self._handle_failure(member, f"failed: {error.message}")
            return
        member.failures += 1
        if member.failures >= FAILURES_IN_A_ROW:
            raise error
        self._handle_failure(member, f"failed: {_last_line(error)}")

    def remove_hung_workers(self, is_asked: Callable[[Actor[RolloutWorker]], bool]) -> list[Actor[RolloutWorker]]:
        """Remove workers that were asked for a fragment too long ago, and return them."""
        now, hanging = self._clock(), []
        for member in self._members:
            timeout_s = self._limits.sample_timeout_s + (START_S if member.first_delivery_s is None else 0)
            if member.actor is None or not is_asked(member.actor):
                member.answered_s = now
            elif now - member.answered_s > timeout_s:
                hanging.append(member.actor)
                self._handle_failure(member, f"delivered nothing for {timeout_s:g} s (sample_timeout_s)")
        return hanging

    def place_replacements(self) -> list[Actor[RolloutWorker]]:
        """Place anew the workers whose delay is over, and return them."""
        now, placed = self._clock(), []
        for member in self._members:
            if member.replace_at_s is None or now < member.replace_at_s:
                continue
            member.attempt += 1
            member.actor = self._place(member.index, member.attempt)
            member.answered_s, member.first_delivery_s, member.replace_at_s = now, None, None
            placed.append(member.actor)
        return placed

    def stop(self) -> None:
        """Forget every worker: the pool ends them."""
        self._members = []

    def _member(self, worker: Actor[RolloutWorker]) -> Member:
        return next(member for member in self._members if member.actor is worker)

    def _handle_failure(self, member: Member, why: str) -> None:
        assert member.actor is not None
        self._pool.remove(member.actor)
        member.actor, member.lost = None, why
        now = self._clock()
        while member.failed_at_s and now - member.failed_at_s[0] > WINDOW_S:
            member.failed_at_s.popleft()
        member.failed_at_s.append(now)
        failures = len(member.failed_at_s)
        if failures > FAILURES_IN_WINDOW or self.num_restarts >= self._limits.max_restarts:
            self._remove(member, why)
            return
        self.num_restarts += 1
        member.restart = self.num_restarts
        member.replace_at_s = now + self._delay_s(member, now)

    def _delay_s(self, member: Member, now: float) -> float:
        if member.first_delivery_s is not None and now - member.first_delivery_s >= STEADY_S:
            member.short_lives = 0
        member.short_lives += 1
        return 0.0 if member.short_lives == 1 else min(FIRST_DELAY_S * 2.0 ** (member.short_lives - 2), LONGEST_DELAY_S)

    def _remove(self, member: Member, why: str) -> None:
        waiting = [each for each in self._members if each.actor is not None or each.replace_at_s is not None]
        if not waiting:
            raise TrialError(f"every rollout worker was removed; the last one {why}", self._limits_hint())
        self._events.append(
            f"{self._name_of(member.index)} {why}; removed {self._reached_limit(member)},"
            f" {len(waiting)} of {len(self._members)} continue"
        )

    def _reached_limit(self, member: Member) -> str:
        if len(member.failed_at_s) > FAILURES_IN_WINDOW:
            return f"after {len(member.failed_at_s)} failures in {WINDOW_S / 60:g} minutes"
        return f"since all {self._limits.max_restarts} restarts are used (max_num_worker_restarts)"

    def _limits_hint(self) -> str:
        return (
            f"a worker is removed after more than {FAILURES_IN_WINDOW} failures in {WINDOW_S / 60:g} minutes,"
            f" all after {self._limits.max_restarts} restarts (max_num_worker_restarts)"
        )


def _last_line(error: Exception) -> str:
    """Return what was raised in the worker, without the layers that carried it."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, RlexpError):
        return cause.message
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
