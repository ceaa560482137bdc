"""A board in this process: for tests, and for actors that are threads of the trainer's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rlexp.transport.board import (
    NOTHING_GOT,
    Beat,
    Fenced,
    Lead,
    News,
    Seat,
    SeatHolder,
    Task,
    TaskStatus,
    TaskSummary,
    TrainerBeat,
    actor_of,
    check_name,
    check_task,
)
from rlexp.transport.board_errors import BannedError
from rlexp.transport.carrier import Carrier
from rlexp.transport.carriers.memory import MemoryCarrier, MemoryQueue

KEPT_AFTER_END_S: Final = 7 * 24 * 3600.0
"""For how long a board knows of a task that is over: a week."""


@dataclass
class _Lease:
    epoch: int
    member: str
    expires_s: float


@dataclass
class _Entry:
    task: Task
    announced_s: float
    status: TaskStatus = TaskStatus.RUNNING
    reason: str = ""
    ended_s: float | None = None
    trainer: _Lease | None = None
    seats: dict[int, _Lease] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    news: News = field(default_factory=News)
    got: dict[tuple[int, int], int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)
    queue: MemoryQueue = field(default_factory=MemoryQueue)


class MemoryServer:
    """What a server keeps; boards of the same one see the same tasks."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch; only it decides when a lease runs out."""
        self.clock = clock
        self.lock = threading.Lock()
        self.entries: dict[str, _Entry] = {}

    def lose_data(self) -> None:
        """Forget everything, as a server that restarts without its data."""
        with self.lock:
            self.entries.clear()


class MemoryBoard:
    """A connection to a MemoryServer; see :class:`~rlexp.transport.board.Board`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def tasks(self) -> list[TaskSummary]:
        now = self._server.clock()
        with self._server.lock:
            self._forget_old(now)
            entries = sorted(self._server.entries.values(), key=lambda entry: (entry.announced_s, entry.task.id))
            return [_summary(entry, now) for entry in entries]

    def describe(self, task_id: str) -> Task | None:
        with self._server.lock:
            entry = self._server.entries.get(task_id)
            return entry.task if entry else None

    def queue(self, task_id: str) -> Carrier:
        return _TaskQueue(self._server, task_id)

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(task_id)
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
                    entry.seats[index] = _Lease(epoch, member, now + lease_s)
                    return Seat(task_id, index, epoch, member, lease_s)
            return None

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        if messages:
            self.queue(seat.task_id).send(messages)
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(seat.task_id)
            if entry is None:
                return Beat(None, -1, NOTHING_GOT)
            lease = entry.seats.get(seat.index)
            newest = entry.epochs.get(seat.index, 0)
            if newest > seat.epoch or (lease and newest == seat.epoch and lease.member != seat.member):
                return Fenced()
            entry.epochs[seat.index] = seat.epoch
            entry.seats[seat.index] = _Lease(seat.epoch, seat.member, now + seat.lease_s)
            got = entry.got.get((seat.index, seat.epoch), NOTHING_GOT)
            return Beat(entry.status, entry.news.weights_version, got, len(entry.queue.messages))

    def release(self, seat: Seat) -> None:
        with self._server.lock:
            entry = self._server.entries.get(seat.task_id)
            lease = entry.seats.get(seat.index) if entry else None
            if lease and (lease.epoch, lease.member) == (seat.epoch, seat.member):
                lease.expires_s = 0.0

    def get_blob(self, task_id: str, name: str) -> bytes | None:
        with self._server.lock:
            entry = self._server.entries.get(task_id)
            return entry.blobs.get(name) if entry else None

    def ban(self, lead: Lead, actor: str) -> None:
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(lead.task_id)
            if entry is None or not _leads(entry, lead):
                return
            entry.banned.add(actor)
            for index, lease in entry.seats.items():
                if actor_of(lease.member) == actor:
                    entry.epochs[index] = _next_epoch(entry.epochs.get(index, 0), now)
                    entry.seats[index] = _Lease(entry.epochs[index], "", 0.0)

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        check_task(task)
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.setdefault(task.id, _Entry(task, now))
            for index, epoch in (epochs or {}).items():
                entry.epochs[index] = max(entry.epochs.get(index, 0), epoch)

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(task_id)
            if entry is None:
                return None
            lease = entry.trainer
            if lease and lease.expires_s > now and (lease.epoch, lease.member) != (epoch, member):
                return None
            if epoch and lease and lease.epoch > epoch:
                return None
            given = epoch or _next_epoch(lease.epoch if lease else 0, now)
            entry.trainer = _Lease(given, member, now + lease_s)
            return Lead(task_id, given, member, lease_s)

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(lead.task_id)
            if entry is None or entry.trainer is None:
                return TrainerBeat(None)
            if not _leads(entry, lead):
                return Fenced()
            entry.trainer.expires_s = now + lead.lease_s
            entry.news = news
            for (index, epoch), number in news.got.items():
                if entry.epochs.get(index, 0) <= epoch:
                    entry.got[index, epoch] = max(entry.got.get((index, epoch), NOTHING_GOT), number)
            return TrainerBeat(entry.status, _holders(entry, now), len(entry.queue.messages))

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        with self._server.lock:
            entry = self._server.entries.get(lead.task_id)
            if entry is None or not _leads(entry, lead):
                return False
            entry.blobs[check_name(name)] = bytes(content)
            return True

    def drop_blob(self, lead: Lead, name: str) -> None:
        with self._server.lock:
            entry = self._server.entries.get(lead.task_id)
            if entry and _leads(entry, lead):
                entry.blobs.pop(name, None)

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        now = self._server.clock()
        with self._server.lock:
            entry = self._server.entries.get(lead.task_id)
            if entry and entry.trainer and _leads(entry, lead):
                entry.status, entry.reason, entry.ended_s = status, reason, now
                entry.trainer.expires_s = 0.0

    def close(self) -> None:
        """There is nothing to give up."""

    def _forget_old(self, now: float) -> None:
        entries = self._server.entries
        for task_id, entry in list(entries.items()):
            if entry.ended_s is not None and now - entry.ended_s > KEPT_AFTER_END_S:
                del entries[task_id]


class _TaskQueue:
    """The queue of a task, which may be announced later or again."""

    def __init__(self, server: MemoryServer, task_id: str) -> None:
        self._server = server
        self._task_id = task_id

    @property
    def max_bytes(self) -> int:
        return MemoryCarrier(MemoryQueue()).max_bytes

    def send(self, messages: Sequence[bytes]) -> None:
        self._carrier().send(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        return self._carrier().receive(limit, timeout_s)

    def close(self) -> None:
        """There is nothing to give up."""

    def _carrier(self) -> MemoryCarrier:
        with self._server.lock:
            entry = self._server.entries.get(self._task_id)
            return MemoryCarrier(entry.queue if entry else MemoryQueue())


def _next_epoch(before: int, now_s: float) -> int:
    """Return an epoch that was never given out, also where the data of a server was lost."""
    return max(before + 1, int(now_s * 1000))


def _leads(entry: _Entry, lead: Lead) -> bool:
    lease = entry.trainer
    return lease is not None and (lease.epoch, lease.member) == (lead.epoch, lead.member)


def _holders(entry: _Entry, now: float) -> tuple[SeatHolder, ...]:
    return tuple(
        SeatHolder(index, lease.epoch, lease.member, max(lease.expires_s - now, 0.0))
        for index, lease in sorted(entry.seats.items())
    )


def _summary(entry: _Entry, now: float) -> TaskSummary:
    trainer = entry.trainer
    return TaskSummary(
        id=entry.task.id,
        name=entry.task.name,
        status=entry.status,
        reason=entry.reason,
        num_seats=entry.task.num_seats,
        num_taken=sum(lease.expires_s > now for lease in entry.seats.values()),
        trainer=trainer.member if trainer and trainer.expires_s > now else None,
        age_s=now - entry.announced_s,
    )
