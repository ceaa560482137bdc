"""A board and its queues in this process, for tests; ``tests/conftest.py`` lets ``open_board`` open them by name."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from rlexp.board.messages.address import QUEUE_OF_BOARD, BoardAddress
from rlexp.board.messages.basics import (
    KEPT_ROWS,
    KEPT_S,
    MAX_BLOB_BYTES,
    BannedError,
    BoardError,
    InvalidMessageError,
    Task,
    UnreadableValues,
    check_name,
    check_rows,
    check_task,
)
from rlexp.board.messages.window import NOTHING_GOT
from rlexp.board.servers.board import (
    Beat,
    Board,
    Carrier,
    Fenced,
    Lead,
    News,
    Seat,
    SeatHolder,
    TaskStatus,
    TaskSummary,
    TrainerBeat,
    actor_of,
    check_sizes,
)

MAX_BYTES: Final = 4 << 20


class MemoryQueue:
    """The messages of one task; owned by a MemoryServer."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self._changed = threading.Condition()

    def add(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` and wake who waits for them."""
        with self._changed:
            self.messages.extend(messages)
            self._changed.notify_all()

    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Remove the oldest messages and return them, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.messages), timeout_s)
            return [self.messages.popleft() for _ in range(min(limit, len(self.messages)))]


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
    banned: set[str] = field(default_factory=set)
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


class MemoryServer:
    """What a server keeps; boards of the same one see the same tasks."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch; only it decides when a lease runs out."""
        self.clock = clock
        self.lock = threading.Lock()
        self.entries: dict[str, MemoryTask] = {}

    def lose_data(self) -> None:
        """Forget everything, as a server that restarts without its data."""
        with self.lock:
            self.entries.clear()


class MemoryBoard:
    """A connection to a MemoryServer; see :class:`~rlexp.board.servers.board.Board`."""

    queue_kind = QUEUE_OF_BOARD

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.unreadable = UnreadableValues()

    def tasks(self) -> list[TaskSummary]:
        now = self._server.clock()
        with self._server.lock:
            self._forget_old(now)
            entries = sorted(self._server.entries.values(), key=lambda entry: (entry.announced_s, entry.task.id))
            return [entry.summary(now) for entry in entries]

    def describe(self, task_id: str) -> Task | None:
        with self._entry(task_id) as entry:
            return entry.task if entry else None

    def queue(self, task_id: str) -> Carrier:
        return _TaskQueue(self._server, task_id)

    def submit(self, task: Task) -> None:
        check_task(task)
        now = self._server.clock()
        with self._server.lock:
            if task.id in self._server.entries:
                raise BoardError(f"the board has a task {task.id} already")
            self._server.entries[task.id] = MemoryTask(task, now, now + KEPT_S, TaskStatus.QUEUED)

    def cancel(self, task_id: str, reason: str) -> bool:
        with self._entry(task_id) as entry:
            return entry is not None and entry.end(TaskStatus.CANCELLED, reason, self._server.clock())

    def rows(self, task_id: str, start: int) -> list[tuple[int, str]]:
        with self._entry(task_id) as entry:
            if entry is None or not entry.rows:
                return []
            lost = start > entry.rows[-1][0] + 1
            return [(number, row) for number, row in entry.rows if lost or number >= start]

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        now = self._server.clock()
        with self._entry(task_id) as entry:
            if entry is None or entry.status is not TaskStatus.RUNNING:
                return None
            if actor_of(member) in entry.banned:
                raise BannedError(task_id)
            for index in range(entry.task.num_seats):
                lease = entry.seats.get(index)
                if lease is None or lease.expires_s <= now:
                    epoch = _next_epoch(entry.epochs.get(index, 0), now)
                    entry.got.pop((index, entry.epochs.get(index, 0)), None)
                    entry.epochs[index] = epoch
                    entry.seats[index] = Lease(epoch, member, now + lease_s)
                    return Seat(task_id, index, epoch, member, lease_s)
            return None

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        if messages:
            self.queue(seat.task_id).send(messages)
        now = self._server.clock()
        with self._entry(seat.task_id) as entry:
            if entry is None:
                return Beat(None, -1, NOTHING_GOT)
            lease = entry.seats.get(seat.index)
            newest = entry.epochs.get(seat.index, 0)
            if newest > seat.epoch or (lease and newest == seat.epoch and lease.member != seat.member):
                return Fenced()
            entry.epochs[seat.index] = seat.epoch
            entry.seats[seat.index] = Lease(seat.epoch, seat.member, now + seat.lease_s)
            got = entry.got.get((seat.index, seat.epoch), NOTHING_GOT)
            is_led = entry.has_trainer(now)
            return Beat(entry.status, entry.news.weights_version, got, len(entry.queue.messages), is_led)

    def release(self, seat: Seat) -> None:
        with self._entry(seat.task_id) as entry:
            lease = entry.seats.get(seat.index) if entry else None
            if lease and (lease.epoch, lease.member) == (seat.epoch, seat.member):
                lease.expires_s = 0.0

    def get_blob(self, task_id: str, name: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
        with self._entry(task_id) as entry:
            blob = entry.blobs.get(name) if entry else None
        if blob is not None and len(blob) > max_bytes:
            raise InvalidMessageError(f"it has {len(blob)} bytes, more than {max_bytes}")
        return blob

    def ban(self, lead: Lead, actor: str) -> None:
        now = self._server.clock()
        with self._led(lead) as entry:
            if entry is None:
                return
            entry.banned.add(actor)
            for index, lease in entry.seats.items():
                if actor_of(lease.member) == actor:
                    entry.epochs[index] = _next_epoch(entry.epochs.get(index, 0), now)
                    entry.seats[index] = Lease(entry.epochs[index], "", 0.0)

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        check_task(task)
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.setdefault(task.id, MemoryTask(task, now, now + KEPT_S))
            if entry.status is TaskStatus.QUEUED:
                entry.task = replace(entry.task, description=task.description, num_seats=task.num_seats)
                entry.status = TaskStatus.RUNNING
            entry.expires_s = now + KEPT_S
            for index, epoch in (epochs or {}).items():
                entry.epochs[index] = max(entry.epochs.get(index, 0), epoch)

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        now = self._server.clock()
        with self._entry(task_id) as entry:
            if entry is None:
                return None
            lease = entry.trainer
            same = lease is not None and (lease.epoch, lease.member) == (epoch, member)
            if not same and (entry.has_trainer(now) or entry.status.is_over):
                return None
            if epoch and lease and lease.epoch > epoch:
                return None
            given = epoch or _next_epoch(lease.epoch if lease else 0, now)
            entry.trainer = Lease(given, member, now + lease_s)
            return Lead(task_id, given, member, lease_s)

    def received(self, task_id: str) -> dict[tuple[int, int], int]:
        with self._entry(task_id) as entry:
            return dict(entry.got) if entry else {}

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        now = self._server.clock()
        with self._entry(lead.task_id) as entry:
            if entry is None or entry.trainer is None:
                return TrainerBeat(None)
            if not entry.is_led_by(lead):
                return Fenced()
            entry.trainer.expires_s = now + lead.lease_s
            entry.expires_s = now + KEPT_S
            entry.news = news
            for (index, epoch), number in news.got.items():
                if entry.epochs.get(index, 0) <= epoch:
                    entry.got[index, epoch] = max(entry.got.get((index, epoch), NOTHING_GOT), number)
            return TrainerBeat(entry.status, entry.holders(now), len(entry.queue.messages))

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        with self._led(lead) as entry:
            if entry is not None:
                entry.blobs[check_name(name)] = bytes(content)
            return entry is not None

    def drop_blob(self, lead: Lead, name: str) -> None:
        with self._led(lead) as entry:
            if entry is not None:
                entry.blobs.pop(name, None)

    def put_rows(self, lead: Lead, rows: Sequence[str]) -> bool:
        check_rows(rows)
        with self._led(lead) as entry:
            if entry is None:
                return False
            following = entry.rows[-1][0] + 1 if entry.rows else 0
            entry.rows.extend(enumerate(rows, following))
            return True

    def give_up(self, lead: Lead) -> None:
        with self._led(lead) as entry:
            if entry and entry.trainer:
                entry.trainer.expires_s = 0.0

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        with self._led(lead) as entry:
            if entry and entry.trainer:
                entry.end(status, reason, self._server.clock())
                entry.trainer.expires_s = 0.0

    def close(self) -> None:
        """There is nothing to give up."""

    @contextmanager
    def _entry(self, task_id: str) -> Iterator[MemoryTask | None]:
        """Hold the server's lock, and give its task of that id."""
        with self._server.lock:
            yield self._server.entries.get(task_id)

    @contextmanager
    def _led(self, lead: Lead) -> Iterator[MemoryTask | None]:
        """The same of the task that ``lead`` is the right to train; None where another one has that."""
        with self._entry(lead.task_id) as entry:
            yield entry if entry is not None and entry.is_led_by(lead) else None

    def _forget_old(self, now: float) -> None:
        entries = self._server.entries
        for task_id in [task_id for task_id, entry in entries.items() if entry.expires_s <= now]:
            del entries[task_id]


class _TaskQueue:
    """The queue of a task, which may be announced later or again."""

    max_bytes = MAX_BYTES

    def __init__(self, server: MemoryServer, task_id: str) -> None:
        self._server, self._task_id = server, task_id

    def send(self, messages: Sequence[bytes]) -> None:
        check_sizes(messages, MAX_BYTES)
        self._queue().add(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        return self._queue().take(limit, timeout_s)

    def close(self) -> None:
        """There is nothing to give up."""

    def _queue(self) -> MemoryQueue:
        with self._server.lock:
            entry = self._server.entries.get(self._task_id)
            return entry.queue if entry else MemoryQueue()


def _next_epoch(before: int, now_s: float) -> int:
    """Return an epoch that was never given out, also where the data of a server was lost."""
    return max(before + 1, int(now_s * 1000))


_SERVERS: Final[dict[str, MemoryServer]] = {}
"""Of this process, by name."""


def open_memory_board(address: BoardAddress) -> Board:
    """Return the board of that name, as ``open_board`` does in tests."""
    return MemoryBoard(_SERVERS.setdefault(address.host, MemoryServer()))
