"""Board: where tasks are announced, their seats leased, and their trainers' news read. Its server's clock decides.

A *seat* is the place of one actor in a task. Who holds one, or trains a task, has a lease and an *epoch*, a number
that the board gives out once: whatever comes with an older epoch is refused. A *carrier* is the pipe that fragments
take to the trainer of a task: it may lose, repeat and reorder messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rlexp.board.messages.errors import UnreadableValues
from rlexp.board.messages.tasks import Task


class Carrier(Protocol):
    """One end of the queue of one task; the windows at both ends make up for all of that.

    Every method raises BoardLostError where the server cannot be reached, and BoardError where it refuses.
    """

    @property
    def max_bytes(self) -> int:
        """Bytes of one message at most."""
        ...

    def send(self, messages: Sequence[bytes]) -> None:
        """Give ``messages`` to the queue, in one round trip at most; raises ValueError for one above ``max_bytes``."""
        ...

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages: those that are there, or else what comes first within ``timeout_s``."""
        ...

    def close(self) -> None:
        """Give up the connection; the second call does nothing."""
        ...


class TaskStatus(StrEnum):
    """What is happening with a task."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether nothing will be trained any more."""
        return self not in (TaskStatus.QUEUED, TaskStatus.RUNNING)


@dataclass(frozen=True)
class TaskSummary:
    """A line of the list of tasks."""

    id: str
    name: str
    status: TaskStatus
    reason: str
    """Why it failed or was cancelled; empty where there is nothing to say."""
    num_seats: int
    taken: tuple[int, ...]
    """The seats whose lease has not run out, by index."""
    trainer: str | None
    """The member that trains it; None where its lease has run out, or none has begun."""
    age_s: float
    """Seconds since it was put there."""
    is_submitted: bool
    """Whether any trainer that waits may train it: its file is on the board."""
    figures: Mapping[str, Any]
    """The newest results that its trainer published, of JSON's own types."""
    weights_version: int
    """The newest weights that can be fetched; -1 before the first ones."""

    @property
    def num_taken(self) -> int:
        """How many seats have an actor."""
        return len(self.taken)


@dataclass(frozen=True)
class Seat:
    """A seat that a member holds."""

    task_id: str
    index: int
    """From 0 to the task's number of seats - 1."""
    epoch: int
    member: str
    """Who holds it."""
    lease_s: float
    """Seconds from each beat for which it is kept."""


@dataclass(frozen=True)
class Beat:
    """What the board answers to an actor's beat."""

    status: TaskStatus | None
    """None: the board has lost its data, and the trainer has not announced the task again yet. The seat is kept."""
    weights_version: int
    """The newest weights that can be fetched; -1 before the first ones."""
    got: int
    """The highest fragment that the trainer received without a gap, of this seat and epoch; NOTHING_GOT before."""
    num_queued: int | None = None
    """Messages that wait in the task's queue; None where nobody can say."""
    is_led: bool = True
    """Whether the task has a trainer whose lease has not run out."""


@dataclass(frozen=True)
class Fenced:
    """The lease ran out and the seat, or the task, has another holder: what is left of this one counts no more."""


@dataclass(frozen=True)
class Lead:
    """The right to train a task."""

    task_id: str
    epoch: int
    member: str
    lease_s: float
    """Seconds from each :meth:`Board.publish` for which it is kept."""


@dataclass(frozen=True)
class News:
    """What a trainer makes known with each of its beats."""

    weights_version: int = -1
    """The newest weights whose blob was put; -1 before the first ones."""
    got: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By (seat, epoch): the highest fragment that was received without a gap. Others stay as they are."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The newest results, of JSON's own types."""


@dataclass(frozen=True)
class SeatHolder:
    """Who holds a seat, as the trainer learns it."""

    index: int
    epoch: int
    member: str
    left_s: float
    """Seconds until its lease runs out; 0 where it has, or where the seat was released."""


@dataclass(frozen=True)
class TrainerBeat:
    """What the board answers to a trainer's news."""

    status: TaskStatus | None
    """None: the board has lost its data; :meth:`Board.announce`, :meth:`Board.lead` and the weights are due again."""
    seats: tuple[SeatHolder, ...] = ()
    """The seats that were ever taken, by index, with those whose lease has run out."""
    num_queued: int | None = None
    """Messages that wait in the task's queue; None where nobody can say."""


class Board(Protocol):
    """A server on which actors and trainers of any number of tasks find each other.

    Every method raises BoardLostError where the server cannot be reached, and BoardError where it refuses; both may
    be called from several threads.
    """

    unreadable: UnreadableValues
    """What was found on the board and left out: others may write anything there."""

    def tasks(self) -> list[TaskSummary]:
        """Return the tasks on the board that can be read, the oldest first; those that are over stay for a week."""
        ...

    def describe(self, task_id: str) -> Task | None:
        """Return a task, None where there is none of this id; raises UnreadableError where it cannot be read."""
        ...

    @property
    def queue_kind(self) -> str:
        """Over what fragments go: QUEUE_OF_BOARD, or the kind of another server."""
        ...

    def queue(self, task_id: str) -> Carrier:
        """Return an end of a task's queue; the caller closes it."""
        ...

    # What somebody calls who submits tasks.

    def submit(self, task: Task) -> None:
        """Put a task there, QUEUED until a trainer announces it; raises BoardError where its id is taken."""
        ...

    def cancel(self, task_id: str, reason: str) -> bool:
        """Let a task be CANCELLED; return False where it is over already, or where there is none.

        Its trainer and its actors learn of it with their next beats.
        """
        ...

    def rows(self, task_id: str, start: int) -> list[tuple[int, str]]:
        """Return the numbered result rows from number ``start`` on, those that are kept, the oldest first.

        Where ``start`` is beyond the next row, the board has lost its data: then all that it has are returned.
        """
        ...

    # What an actor calls.

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        """Take the first free seat of a running task; return None where there is none.

        Raises BannedError where the trainer has banned the actor.
        """
        ...

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        """Keep a seat for another ``lease_s``, and give ``messages`` to the board's own queue in the same round trip.

        They are sent before anyone knows whether the seat is still held: the trainer drops them where it is not.
        """
        ...

    def release(self, seat: Seat) -> None:
        """Give a seat back, so that it is free at once; does nothing where another member has it."""
        ...

    def get_blob(self, task_id: str, name: str) -> bytes | None:
        """Return what was put; None where it is not there, or not as it was put any more."""
        ...

    # What a trainer calls.

    def ban(self, lead: Lead, actor: str) -> None:
        """Take away all seats of an actor, and let it claim none; does nothing where the lead is another's."""
        ...

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        """Put a task on the board, RUNNING; a task that is there stays as it is.

        One that is QUEUED is RUNNING from then on, with the description and number of seats of ``task``. ``epochs``
        are the highest that the trainer knows of each seat: a board without data gives out higher ones.
        """
        ...

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        """Take the right to train a task, QUEUED or RUNNING.

        Return None where another member has it, and where there is no such task or it is over. With ``epoch``, the one
        that was given before, the same right is taken again after the board lost its data; it is given also where the
        task is over meanwhile.
        """
        ...

    def received(self, task_id: str) -> dict[tuple[int, int], int]:
        """Return by seat and epoch how far the trainers of a task have received fragments without a gap."""
        ...

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        """Make ``news`` known, and keep the lead for another ``lease_s``."""
        ...

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        """Put ``content`` there in chunks, in place of what had the name; return False where the lead is another's.

        ``name`` has letters, digits, ``-`` and ``_``.
        """
        ...

    def drop_blob(self, lead: Lead, name: str) -> None:
        """Remove what has this name; does nothing where the lead is another's, or nothing has the name."""
        ...

    def put_rows(self, lead: Lead, rows: Sequence[str]) -> bool:
        """Add result rows as JSON text, with the next numbers; return False where the lead is another's.

        They are numbered from 0, also over several trainers; the newest 1,000 are kept.
        """
        ...

    def give_up(self, lead: Lead) -> None:
        """Give the lead back, so that another trainer can follow at once; does nothing where it is another's."""
        ...

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        """Say how a task ended; does nothing where the lead is another's. A week later it is gone.

        A task that is over already stays as it is: it was cancelled.
        """
        ...

    def close(self) -> None:
        """Give up the connections; the second call does nothing."""
        ...


def actor_of(member: str) -> str:
    """Return which actor a member is: the id of its token, which stands before ``/``, or without one the member."""
    return member.partition("/")[0]


def check_sizes(messages: Sequence[bytes], max_bytes: int) -> None:
    """Raise ValueError where a message is too large for its carrier."""
    largest = max(map(len, messages), default=0)
    if largest > max_bytes:
        raise ValueError(f"a message of {largest} bytes; the queue takes {max_bytes}")
