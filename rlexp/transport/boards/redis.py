"""Redis (6.2 or newer) or Valkey as a board: each task has its keys ``rlexp:{ID}:...``, in one slot of a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

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
    Task,
    TaskStatus,
    TaskSummary,
    TrainerBeat,
    actor_of,
)
from rlexp.transport.board_errors import BannedError, BoardError
from rlexp.transport.boards import scripts
from rlexp.transport.boards.redis_values import (
    SUMMARY_FIELDS,
    holders,
    milliseconds,
    numbered_row,
    received_of,
    summary,
)
from rlexp.transport.carrier import Carrier
from rlexp.transport.carriers.redis import Command, RedisCarrier, RedisConnection
from rlexp.transport.task_limits import KEPT_ROWS, KEPT_S, check_name, check_rows, check_task, is_name

_TASKS: Final = "rlexp:tasks"
_OVER: Final = {status.value.encode() for status in TaskStatus if status.is_over}
_UPLOAD_S: Final = 3600
"""What a trainer that died has put of a blob is gone after an hour."""


class RedisBoard:
    """A connection to a server; see :class:`~rlexp.transport.board.Board`."""

    def __init__(self, address: BoardAddress, open_queue: Callable[[str], Carrier] | None = None) -> None:
        """Connect to ``address`` with the first call; ``open_queue`` opens another server's queue of a task."""
        self._connection = RedisConnection(address, scripts.ALL)
        self._queue_kind, self._open_queue = address.queue_kind, open_queue

    def tasks(self) -> list[TaskSummary]:
        ids = self._ids()
        commands: list[tuple[str, ...]] = [("TIME",)]
        for task_id in ids:
            commands.append(("HMGET", _key(task_id, "task"), *SUMMARY_FIELDS))
            commands.append(("GET", _key(task_id, "trainer")))
            commands.append(("HGETALL", _key(task_id, "seats")))
            commands.append(("GET", _key(task_id, "figures")))
        (seconds, micros), *answers = self._connection.call_all(commands)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = []
        for i, task_id in enumerate(ids):
            # A task whose keys are gone, or hold something else, is no reason not to list the others.
            with suppress(AttributeError, ValueError, BoardError):
                found.append(summary(task_id, *answers[4 * i : 4 * i + 4], now_ms=now_ms))
        return sorted(found, key=lambda task: (-task.age_s, task.id))

    def describe(self, task_id: str) -> Task | None:
        fields = ("name", "seats", "description", "file")
        name, seats, description, file = self._connection.call("HMGET", _key(task_id, "task"), *fields)
        if name is None:
            return None
        try:
            return check_task(Task(task_id, name.decode(), int(seats), parse_json(description), (file or b"").decode()))
        except (TypeError, ValueError) as error:
            raise BoardError(f"the board has a task {task_id} that cannot be read") from error

    @property
    def queue_kind(self) -> str:
        return self._queue_kind

    def queue(self, task_id: str) -> Carrier:
        return self._own_queue(task_id) if self._open_queue is None else self._open_queue(task_id)

    def submit(self, task: Task) -> None:
        check_task(task)
        arguments: Command = [task.name, task.num_seats, to_json(task.description), task.file, KEPT_S]
        if not self._connection.run(scripts.SUBMIT, [_key(task.id, "task")], arguments):
            raise BoardError(f"the board has a task {task.id} already")
        self._connection.call("SADD", _TASKS, task.id)

    def cancel(self, task_id: str, reason: str) -> bool:
        return bool(self._connection.run(scripts.CANCEL, [_key(task_id, "task")], [reason, KEPT_S]))

    def rows(self, task_id: str, start: int) -> list[tuple[int, str]]:
        found = self._connection.run(scripts.ROWS, [], [_key(task_id, "rows"), start])
        try:
            return [numbered_row(row) for row in found]
        except ValueError as error:
            raise BoardError(f"the board has rows of task {task_id} that cannot be read") from error

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        keys = [_key(task_id, name) for name in ("seats", "epochs", "got")]
        arguments: Command = [
            _key(task_id, "task"),
            member,
            milliseconds(lease_s),
            _key(task_id, "banned"),
            actor_of(member),
        ]
        index, epoch = self._connection.run(scripts.CLAIM, keys, arguments)
        if index == -2:
            raise BannedError(task_id)
        return None if index < 0 else Seat(task_id, int(index), int(epoch), member, lease_s)

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        keys = [_key(seat.task_id, name) for name in ("seats", "epochs")]
        read = [_key(seat.task_id, name) for name in ("task", "got", "in:0", "trainer")]
        sent = [self._own_queue(seat.task_id).push(messages)] if messages else []
        arguments: Command = [*read, seat.index, seat.epoch, seat.member, milliseconds(seat.lease_s)]
        status, *more = self._connection.run(scripts.BEAT, keys, arguments, before=sent)
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return Beat(None, -1, NOTHING_GOT)
        version, got, num_queued, is_led = map(int, more)
        return Beat(TaskStatus(status.decode()), version, got, num_queued, bool(is_led))

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
        self._connection.run(scripts.BAN, keys, [lead.epoch, lead.member, actor, KEPT_S])

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        check_task(task)
        # Here rather than when one is missing: actors may be of another version than those that were served before.
        self._connection.load_scripts()
        keys = [_key(task.id, "task"), _key(task.id, "epochs")]
        known = [number for pair in (epochs or {}).items() for number in pair]
        arguments: Command = [task.name, task.num_seats, to_json(task.description), task.file, KEPT_S, *known]
        self._connection.run(scripts.ANNOUNCE, keys, arguments)
        self._connection.call("SADD", _TASKS, task.id)
        self._forget_old()

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        arguments: Command = [_key(task_id, "task"), member, milliseconds(lease_s), epoch, KEPT_S]
        given = int(self._connection.run(scripts.LEAD, [_key(task_id, "trainer")], arguments))
        return Lead(task_id, given, member, lease_s) if given else None

    def received(self, task_id: str) -> dict[tuple[int, int], int]:
        fields = self._connection.call("HGETALL", _key(task_id, "got"))
        try:
            return received_of(fields)
        except ValueError as error:
            raise BoardError(f"the board has numbers of task {task_id} that cannot be read") from error

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        names = ("trainer", "task", "got", "figures", "seats", "epochs", "in:0")
        keys = [_key(lead.task_id, name) for name in names]
        got = [number for (seat, epoch), highest in news.got.items() for number in (seat, epoch, highest)]
        arguments: Command = [
            lead.epoch,
            lead.member,
            milliseconds(lead.lease_s),
            KEPT_S,
            news.weights_version,
            to_json(news.figures),
        ]
        status, *more = self._connection.run(scripts.PUBLISH, keys, [*arguments, *got])
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return TrainerBeat(None)
        now, num_queued, seats = more
        return TrainerBeat(TaskStatus(status.decode()), holders(seats, int(now)), int(num_queued))

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        key = _key(lead.task_id, f"blob:{check_name(name)}")
        written = f"{key}:{lead.epoch}:{secrets.token_hex(4)}"
        for index, chunk in enumerate(chunks(content)):
            self._connection.call_all([("HSET", written, str(index), chunk), ("EXPIRE", written, _UPLOAD_S)])
        head = BlobHead.of(content).to_text()
        self._connection.call_all([("HSET", written, "head", head), ("EXPIRE", written, _UPLOAD_S)])
        keys = [_key(lead.task_id, "trainer"), written, key]
        return bool(self._connection.run(scripts.PUT_BLOB, keys, [lead.epoch, lead.member, KEPT_S]))

    def drop_blob(self, lead: Lead, name: str) -> None:
        keys = [_key(lead.task_id, "trainer"), _key(lead.task_id, f"blob:{check_name(name)}")]
        self._connection.run(scripts.DROP_BLOB, keys, [lead.epoch, lead.member])

    def put_rows(self, lead: Lead, rows: Sequence[str]) -> bool:
        keys = [_key(lead.task_id, "trainer"), _key(lead.task_id, "rows")]
        arguments: Command = [lead.epoch, lead.member, KEPT_S, KEPT_ROWS, *check_rows(rows)]
        return bool(self._connection.run(scripts.PUT_ROWS, keys, arguments))

    def give_up(self, lead: Lead) -> None:
        self._connection.run(scripts.GIVE_UP, [_key(lead.task_id, "trainer")], [lead.epoch, lead.member, KEPT_S])

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        keys = [_key(lead.task_id, name) for name in ("trainer", "task", "in:0")]
        self._connection.run(scripts.FINISH, keys, [lead.epoch, lead.member, status.value, reason, KEPT_S])

    def close(self) -> None:
        self._connection.close()

    def _forget_old(self) -> None:
        """Take tasks off the list whose keys are gone; remove what their actors, and those of ended ones, sent last.

        Nobody reads such a queue, and what begins it anew gives it no time to live: actors may not.
        """
        ids = self._ids()
        statuses = self._connection.call_all([("HGET", _key(task_id, "task"), "status") for task_id in ids])
        gone = [task_id for task_id, status in zip(ids, statuses, strict=True) if status is None]
        over = [task_id for task_id, status in zip(ids, statuses, strict=True) if status in _OVER]
        self._connection.call_all([("UNLINK", _key(task_id, "in:0")) for task_id in [*gone, *over]])
        if gone:
            self._connection.call("SREM", _TASKS, *gone)

    def _own_queue(self, task_id: str) -> RedisCarrier:
        return RedisCarrier(self._connection, _key(task_id, "in:0"))

    def _ids(self) -> list[str]:
        listed = [member.decode("ascii", "replace") for member in self._connection.call("SMEMBERS", _TASKS)]
        return sorted(filter(is_name, listed))


def _key(task_id: str, name: str) -> str:
    return f"rlexp:{{{check_name(task_id)}}}:{name}"
