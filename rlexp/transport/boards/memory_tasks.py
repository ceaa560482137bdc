"""What a board in this process keeps of each task."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rlexp.transport.board import Lead, News, SeatHolder, Task, TaskStatus, TaskSummary
from rlexp.transport.carriers.memory import MemoryQueue
from rlexp.transport.task_limits import KEPT_ROWS, KEPT_S


@dataclass
class Lease:
    """Who holds a seat or trains a task, and until when by the server's clock."""

    epoch: int
    member: str
    expires_s: float


@dataclass
class MemoryTask:
    """A task and all that belongs to it; guarded by its server's lock."""

    task: Task
    announced_s: float
    expires_s: float
    """When it is forgotten, unless somebody renews it."""
    status: TaskStatus = TaskStatus.RUNNING
    reason: str = ""
    trainer: Lease | None = None
    seats: dict[int, Lease] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    news: News = field(default_factory=News)
    got: dict[tuple[int, int], int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    rows: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=KEPT_ROWS))
    queue: MemoryQueue = field(default_factory=MemoryQueue)

    def is_led_by(self, lead: Lead) -> bool:
        """Return whether ``lead`` is the right that was given out last, even if it ran out."""
        lease = self.trainer
        return lease is not None and (lease.epoch, lease.member) == (lead.epoch, lead.member)

    def has_trainer(self, now: float) -> bool:
        """Return whether its trainer's lease has not run out."""
        return self.trainer is not None and self.trainer.expires_s > now

    def end(self, status: TaskStatus, reason: str, now: float) -> bool:
        """Let it be over, unless it is; return whether it was not."""
        if self.status.is_over:
            return False
        self.status, self.reason = status, reason
        self.expires_s = now + KEPT_S
        return True

    def holders(self, now: float) -> tuple[SeatHolder, ...]:
        """Return who holds or held the seats, by index."""
        return tuple(
            SeatHolder(index, lease.epoch, lease.member, max(lease.expires_s - now, 0.0))
            for index, lease in sorted(self.seats.items())
        )

    def summary(self, now: float) -> TaskSummary:
        """Return its line of the list of tasks."""
        trainer = self.trainer
        return TaskSummary(
            id=self.task.id,
            name=self.task.name,
            status=self.status,
            reason=self.reason,
            num_seats=self.task.num_seats,
            taken=tuple(index for index, lease in sorted(self.seats.items()) if lease.expires_s > now),
            trainer=trainer.member if trainer and trainer.expires_s > now else None,
            age_s=now - self.announced_s,
            is_submitted=self.task.file != "",
            figures=self.news.figures,
            weights_version=self.news.weights_version,
        )
