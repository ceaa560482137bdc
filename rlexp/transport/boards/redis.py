"""Redis (6.2 or newer) or Valkey as a board: each task has its keys ``rlexp:{ID}:...``, in one slot of a cluster."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rlexp.json_file import parse_json, to_json
from rlexp.transport.address import BoardAddress
from rlexp.transport.blobs import BlobHead, chunks
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
    is_name,
)
from rlexp.transport.board_errors import BannedError, BoardError
from rlexp.transport.boards import scripts
from rlexp.transport.boards.memory import KEPT_AFTER_END_S
from rlexp.transport.carriers.redis import Command, RedisCarrier, RedisConnection

_TASKS: Final = "rlexp:tasks"
_KEPT_S: Final = int(KEPT_AFTER_END_S)
_UPLOAD_S: Final = 3600
"""What a trainer that died has put of a blob is gone after an hour."""


class RedisBoard:
    """A connection to a server; see :class:`~rlexp.transport.board.Board`."""

    def __init__(self, address: BoardAddress) -> None:
        """Connect to ``address`` with the first call."""
        self._connection = RedisConnection(address)

    def tasks(self) -> list[TaskSummary]:
        ids = self._ids()
        commands: list[tuple[str, ...]] = [("TIME",)]
        for task_id in ids:
            fields = ("name", "status", "reason", "seats", "announced")
            commands.append(("HMGET", _key(task_id, "task"), *fields))
            commands.append(("GET", _key(task_id, "trainer")))
            commands.append(("HVALS", _key(task_id, "seats")))
        (seconds, micros), *answers = self._connection.call_all(commands)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = []
        for i, task_id in enumerate(ids):
            # A task whose keys are gone, or hold something else, is no reason not to list the others.
            with suppress(AttributeError, ValueError, BoardError):
                found.append(_summary(task_id, answers[3 * i], answers[3 * i + 1], answers[3 * i + 2], now_ms))
        return sorted(found, key=lambda task: (-task.age_s, task.id))

    def describe(self, task_id: str) -> Task | None:
        name, seats, description = self._connection.call("HMGET", _key(task_id, "task"), "name", "seats", "description")
        if name is None:
            return None
        try:
            return check_task(Task(task_id, name.decode(), int(seats), parse_json(description)))
        except (TypeError, ValueError) as error:
            raise BoardError(f"the board has a task {task_id} that cannot be read") from error

    def queue(self, task_id: str) -> RedisCarrier:
        return RedisCarrier(self._connection, _key(task_id, "in:0"))

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        keys = [_key(task_id, name) for name in ("seats", "epochs", "got")]
        arguments: Command = [
            _key(task_id, "task"),
            member,
            _ms(lease_s),
            _key(task_id, "banned"),
            actor_of(member),
        ]
        index, epoch = self._connection.run(scripts.CLAIM, keys, arguments)
        if index == -2:
            raise BannedError(task_id)
        return None if index < 0 else Seat(task_id, int(index), int(epoch), member, lease_s)

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        keys = [_key(seat.task_id, name) for name in ("seats", "epochs")]
        read = [_key(seat.task_id, name) for name in ("task", "got", "in:0")]
        sent = [self.queue(seat.task_id).push(messages)] if messages else []
        arguments: Command = [*read, seat.index, seat.epoch, seat.member, _ms(seat.lease_s)]
        status, *more = self._connection.run(scripts.BEAT, keys, arguments, before=sent)
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return Beat(None, -1, NOTHING_GOT)
        version, got, num_queued = map(int, more)
        return Beat(TaskStatus(status.decode()), version, got, num_queued)

    def release(self, seat: Seat) -> None:
        arguments: Command = [seat.index, seat.epoch, seat.member]
        self._connection.run(scripts.RELEASE, [_key(seat.task_id, "seats")], arguments)

    def get_blob(self, task_id: str, name: str) -> bytes | None:
        key = _key(task_id, f"blob:{check_name(name)}")
        text = self._connection.call("HGET", key, "head")
        if text is None:
            return None
        try:
            head = BlobHead.parse(text.decode())
        except ValueError as error:
            raise BoardError(f"the board has a blob {name} that cannot be read") from error
        pieces = [self._connection.call("HGET", key, str(index)) for index in range(head.num_chunks)]
        content = b"".join(piece or b"" for piece in pieces)
        return content if head.fits(content) else None

    def ban(self, lead: Lead, actor: str) -> None:
        keys = [_key(lead.task_id, name) for name in ("trainer", "seats", "epochs", "banned")]
        self._connection.run(scripts.BAN, keys, [lead.epoch, lead.member, actor, _KEPT_S])

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        check_task(task)
        keys = [_key(task.id, "task"), _key(task.id, "epochs")]
        known = [number for pair in (epochs or {}).items() for number in pair]
        arguments: Command = [task.name, task.num_seats, to_json(task.description), _KEPT_S, *known]
        self._connection.run(scripts.ANNOUNCE, keys, arguments)
        self._connection.call("SADD", _TASKS, task.id)
        self._forget_old()

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        arguments: Command = [_key(task_id, "task"), member, _ms(lease_s), epoch, _KEPT_S]
        given = int(self._connection.run(scripts.LEAD, [_key(task_id, "trainer")], arguments))
        return Lead(task_id, given, member, lease_s) if given else None

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        names = ("trainer", "task", "got", "figures", "seats", "epochs", "in:0")
        keys = [_key(lead.task_id, name) for name in names]
        got = [number for (seat, epoch), highest in news.got.items() for number in (seat, epoch, highest)]
        arguments: Command = [
            lead.epoch,
            lead.member,
            _ms(lead.lease_s),
            _KEPT_S,
            news.weights_version,
            to_json(news.figures),
        ]
        status, *more = self._connection.run(scripts.PUBLISH, keys, [*arguments, *got])
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return TrainerBeat(None)
        now, num_queued, seats = more
        return TrainerBeat(TaskStatus(status.decode()), _holders(seats, int(now)), int(num_queued))

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        key = _key(lead.task_id, f"blob:{check_name(name)}")
        written = f"{key}:{lead.epoch}:{secrets.token_hex(4)}"
        for index, chunk in enumerate(chunks(content)):
            self._connection.call_all([("HSET", written, str(index), chunk), ("EXPIRE", written, _UPLOAD_S)])
        head = BlobHead.of(content).to_text()
        self._connection.call_all([("HSET", written, "head", head), ("EXPIRE", written, _UPLOAD_S)])
        keys = [_key(lead.task_id, "trainer"), written, key]
        return bool(self._connection.run(scripts.PUT_BLOB, keys, [lead.epoch, lead.member, _KEPT_S]))

    def drop_blob(self, lead: Lead, name: str) -> None:
        keys = [_key(lead.task_id, "trainer"), _key(lead.task_id, f"blob:{check_name(name)}")]
        self._connection.run(scripts.DROP_BLOB, keys, [lead.epoch, lead.member])

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        keys = [_key(lead.task_id, name) for name in ("trainer", "task", "in:0")]
        self._connection.run(scripts.FINISH, keys, [lead.epoch, lead.member, status.value, reason, _KEPT_S])

    def close(self) -> None:
        self._connection.close()

    def _forget_old(self) -> None:
        """Take tasks off the list whose keys are gone."""
        ids = self._ids()
        there = self._connection.call_all([("EXISTS", _key(task_id, "task")) for task_id in ids])
        gone = [task_id for task_id, exists in zip(ids, there, strict=True) if not exists]
        if gone:
            self._connection.call("SREM", _TASKS, *gone)

    def _ids(self) -> list[str]:
        listed = [member.decode("ascii", "replace") for member in self._connection.call("SMEMBERS", _TASKS)]
        return sorted(filter(is_name, listed))


def _key(task_id: str, name: str) -> str:
    return f"rlexp:{{{check_name(task_id)}}}:{name}"


def _ms(seconds: float) -> int:
    return max(math.ceil(seconds * 1000), 1)


def _lease(value: bytes | None) -> tuple[int, int, str]:
    """Return when a lease ends, in ms of the server's clock, its epoch and its member."""
    try:
        expires, epoch, member = (value or b"0 0 ").decode().split(" ", 2)
        return int(expires), int(epoch), member
    except ValueError as error:
        raise BoardError("the board has a lease that cannot be read") from error


def _holders(seats: Sequence[bytes], now_ms: int) -> tuple[SeatHolder, ...]:
    holders = []
    for index, value in zip(seats[::2], seats[1::2], strict=True):
        expires, epoch, member = _lease(value)
        holders.append(SeatHolder(int(index), epoch, member, max(expires - now_ms, 0) / 1000))
    return tuple(sorted(holders, key=lambda holder: holder.index))


def _summary(
    task_id: str, task: Sequence[Any], trainer: bytes | None, seats: Sequence[bytes], now_ms: int
) -> TaskSummary:
    name, status, reason, num_seats, announced = (field.decode() for field in task)
    expires, _, member = _lease(trainer)
    return TaskSummary(
        id=task_id,
        name=name,
        status=TaskStatus(status),
        reason=reason,
        num_seats=int(num_seats),
        num_taken=sum(_lease(seat)[0] > now_ms for seat in seats),
        trainer=member if expires > now_ms else None,
        age_s=max(now_ms - int(announced), 0) / 1000,
    )
