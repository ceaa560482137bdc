"""Board: a server for announcing tasks, leasing seats and reading trainers' news. Its clock decides about leases.

A *seat* is the place of one actor in a task. The holder of a seat, or of a task's lead, has a lease and an *epoch*, a
number that the board gives out once: messages with an older epoch are refused. A *carrier* is the queue through which
fragments reach the trainer of a task. It may lose, repeat and reorder messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rlexp.board.messages.basics import MAX_BLOB_BYTES, Task, UnreadableValues


class Carrier(Protocol):
    """One end of the queue of one task; the windows at both ends correct losses, repeats and reordering.

    Every method raises BoardLostError if the server cannot be reached, and BoardError if it refuses.
    """

    @property
    def max_bytes(self) -> int:
        """Most bytes of one message."""

    def send(self, messages: Sequence[bytes]) -> None:
        """Send ``messages`` in at most one round trip; raises ValueError for one above ``max_bytes``."""

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages: waiting ones, or else the first that arrive within ``timeout_s``."""

    def close(self) -> None:
        """Close the connection; idempotent."""


class TaskStatus(StrEnum):
    """The state of a task."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether the task will not be trained any more."""
        return self not in (TaskStatus.QUEUED, TaskStatus.RUNNING)


@dataclass(frozen=True)
class TaskSummary:
    """A line of the list of tasks."""

    id: str
    name: str
    status: TaskStatus
    reason: str
    """The reason of a failure or cancellation; empty if there is none."""
    num_seats: int
    taken: tuple[int, ...]
    """The seats whose lease has not expired, by index."""
    trainer: str | None
    """The member that trains it; None if its lease has expired, or none has begun."""
    age_s: float
    """Seconds since it was put on the board."""
    is_submitted: bool
    """Whether any waiting trainer may train it: its file is on the board."""
    figures: Mapping[str, Any]
    """The newest results that its trainer published, of JSON's own types."""
    weights_version: int
    """The newest weights that can be fetched; -1 before the first ones."""

    @property
    def num_taken(self) -> int:
        return len(self.taken)


@dataclass(frozen=True)
class Seat:
    """A seat that a member holds."""

    task_id: str
    index: int
    """0 to the task's number of seats - 1."""
    epoch: int
    member: str
    lease_s: float
    """Seconds for which it is kept after each heartbeat."""


@dataclass(frozen=True)
class Beat:
    """The board's answer to an actor's heartbeat."""

    status: TaskStatus | None
    """None: the board lost its data, and no trainer has announced the task again yet. The seat is kept."""
    weights_version: int
    """The newest weights that can be fetched; -1 before the first ones."""
    got: int
    """Last fragment of this seat and epoch that the trainer received without a gap; NOTHING_GOT before the first."""
    num_queued: int | None = None
    """Messages that wait in the task's queue; None if not known."""
    is_led: bool = True
    """Whether the task has a trainer whose lease has not expired."""


@dataclass(frozen=True)
class Fenced:
    """The lease expired and the seat, or the task, has another holder; messages of the old one are not counted."""


@dataclass(frozen=True)
class Lead:
    """The right to train a task."""

    task_id: str
    epoch: int
    member: str
    lease_s: float
    """Seconds for which it is kept after each :meth:`Board.publish`."""


@dataclass(frozen=True)
class News:
    """The news that a trainer publishes with each of its heartbeats."""

    weights_version: int = -1
    """The newest weights whose blob was put; -1 before the first ones."""
    got: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The last fragment received without a gap, by (seat, epoch). Others do not change."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The newest results, of JSON's own types."""


@dataclass(frozen=True)
class SeatHolder:
    """The holder of a seat, as the trainer gets it."""

    index: int
    epoch: int
    member: str
    left_s: float
    """Seconds until its lease expires; 0 if it has, or if the seat was released."""


@dataclass(frozen=True)
class TrainerBeat:
    """The board's answer to a trainer's news."""

    status: TaskStatus | None
    """None: the board lost its data; :meth:`Board.announce`, :meth:`Board.lead` and the weights are due again."""
    seats: tuple[SeatHolder, ...] = ()
    """All seats that were ever taken, by index, also with expired leases."""
    num_queued: int | None = None
    """Messages that wait in the task's queue; None if not known."""


class Board(Protocol):
    """A server on which actors and trainers of any number of tasks find each other.

    Every method raises BoardLostError if the server cannot be reached, and BoardError if it refuses. Several threads
    may call the methods.
    """

    unreadable: UnreadableValues
    """Values on the board that were left out, as others may write anything there."""

    def tasks(self) -> list[TaskSummary]:
        """Return the readable tasks on the board, the oldest first; ended ones stay for a week."""

    def describe(self, task_id: str) -> Task | None:
        """Return a task; None if there is none of this id; raises UnreadableError if it cannot be read."""

    @property
    def queue_kind(self) -> str:
        """The kind of queue for fragments: QUEUE_OF_BOARD, or the kind of another server."""

    def queue(self, task_id: str) -> Carrier:
        """Return an end of a task's queue; the caller closes it."""

    # Calls of a submitter.

    def submit(self, task: Task) -> None:
        """Put a task there, QUEUED until a trainer announces it; raises BoardError if its id is taken."""

    def cancel(self, task_id: str, reason: str) -> bool:
        """Set a task to CANCELLED; return False if it is over already or does not exist.

        Its trainer and its actors get this with their next heartbeats.
        """

    def rows(self, task_id: str, start: int) -> list[tuple[int, str]]:
        """Return the kept result rows with their numbers, from number ``start`` on, the oldest first.

        If ``start`` is beyond the next row, the board has lost its data; then all its rows are returned.
        """

    # Calls of an actor.

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        """Take the first free seat of a running task; return None if there is none.

        Raises BannedError if the trainer has banned the actor.
        """

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        """Keep a seat for another ``lease_s``, and give ``messages`` to the board's own queue in the same round trip.

        They are sent before it is known whether the seat is still held; the trainer drops them if it is not.
        """

    def release(self, seat: Seat) -> None:
        """Release a seat, so that it is free at once; does nothing if another member has it."""

    def get_blob(self, task_id: str, name: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
        """Return a blob; None if it is missing or corrupted.

        Raises InvalidMessageError, before it is read, for one of more than ``max_bytes``.
        """

    # Calls of a trainer.

    def ban(self, lead: Lead, actor: str) -> None:
        """Take away all seats of an actor, and let it claim none; does nothing if another has the lead."""

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        """Put a task on the board, RUNNING; a task that is there stays as it is.

        A QUEUED one becomes RUNNING, with the description and number of seats of ``task``. ``epochs`` are the highest
        that the trainer knows of each seat; a board without data gives out higher ones.
        """

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        """Take the right to train a task, QUEUED or RUNNING.

        Return None if another member has it, the task does not exist, or it is over. With ``epoch``, the one given
        before, the same right is taken again after the board lost its data, even if the task is over meanwhile.
        """

    def received(self, task_id: str) -> dict[tuple[int, int], int]:
        """Return by seat and epoch how far the trainers of a task received fragments without a gap."""

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        """Publish ``news``, and keep the lead for another ``lease_s``."""

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        """Put ``content`` there in chunks and replace the blob of this name; return False if another has the lead.

        ``name`` has letters, digits, ``-`` and ``_``.
        """

    def drop_blob(self, lead: Lead, name: str) -> None:
        """Remove the blob of this name; does nothing if another has the lead or there is no such blob."""

    def put_rows(self, lead: Lead, rows: Sequence[str]) -> bool:
        """Add result rows as JSON text, with the next numbers; return False if another has the lead.

        Numbers start at 0 and continue over several trainers; the newest 1,000 rows are kept.
        """

    def give_up(self, lead: Lead) -> None:
        """Give the lead back, so that another trainer can follow at once; does nothing if another has it."""

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        """Set the end of a task; does nothing if another has the lead. The board removes it a week later.

        A task that is over already does not change: it was cancelled.
        """

    def close(self) -> None:
        """Close the connections; idempotent."""


def actor_of(member: str) -> str:
    """Return the actor of a member: the id of its token, before the ``/``, or without a token the member."""
    return member.partition("/")[0]


def check_sizes(messages: Sequence[bytes], max_bytes: int) -> None:
    """Raise ValueError if a message is too large for its carrier."""
    largest = max(map(len, messages), default=0)
    if largest > max_bytes:
        raise ValueError(f"a message of {largest} bytes; the queue takes {max_bytes}")
