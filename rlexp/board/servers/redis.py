"""Redis (6.2 or newer) or Valkey as a board: each task has the keys ``rlexp:{ID}:...``, in one slot of a cluster."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import (
    CHUNK_BYTES,
    KEPT_ROWS,
    KEPT_S,
    MAX_BLOB_BYTES,
    BannedError,
    BlobHead,
    BoardError,
    InvalidMessageError,
    Task,
    UnreadableError,
    UnreadableValues,
    check_name,
    check_rows,
    check_task,
    chunks,
    is_name,
)
from rlexp.board.messages.window import NOTHING_GOT
from rlexp.board.servers import redis_scripts
from rlexp.board.servers.board import (
    Beat,
    Carrier,
    Fenced,
    Lead,
    News,
    Seat,
    TaskStatus,
    TaskSummary,
    TrainerBeat,
    actor_of,
)
from rlexp.board.servers.redis_queue import TAKE, Command, RedisCarrier, RedisConnection, WrongTypeError
from rlexp.board.servers.redis_values import (
    SUMMARY_FIELDS,
    TASK_FIELDS,
    TaskValues,
    described,
    holders,
    milliseconds,
    numbered_rows,
    received_of,
    summary,
)
from rlexp.files import to_json

_TASKS: Final = "rlexp:tasks"
_OVER: Final = {status.value.encode() for status in TaskStatus if status.is_over}
_NOT_ANNOUNCED: Final = (b"",) * len(TASK_FIELDS)
_LISTED_S: Final = 2.0
"""Seconds between two checks of a trainer that its task is listed."""
_UPLOAD_S: Final = 3600
"""Seconds after which the unfinished blob of a dead trainer is removed: an hour."""


class RedisBoard:
    """A connection to a server; see :class:`~rlexp.board.servers.board.Board`."""

    def __init__(self, address: BoardAddress, open_queue: Callable[[str], Carrier] | None = None) -> None:
        """Connect to ``address`` with the first call; ``open_queue`` opens a task's queue on another server."""
        self._connection = RedisConnection(address, (*redis_scripts.ALL, TAKE))
        self.queue_kind, self._open_queue = address.queue_kind, open_queue
        self._announced: dict[str, Sequence[bytes]] = {}
        """TASK_FIELDS that each task has and must keep."""
        self._listed_s = -math.inf
        self.unreadable = UnreadableValues()

    def tasks(self) -> list[TaskSummary]:
        (members,) = self._connection.read_all([("SMEMBERS", _TASKS)])
        if isinstance(members, WrongTypeError):
            self.unreadable.add("", _TASKS)
            return []
        ids = sorted(_names(members))
        commands: list[tuple[str, ...]] = [("TIME",)]
        for task_id in ids:
            task, trainer, seats, figures = _keys(task_id, "task", "trainer", "seats", "figures")
            commands += [("HMGET", task, *SUMMARY_FIELDS), ("GET", trainer), ("HGETALL", seats), ("GET", figures)]
        (seconds, micros), *answers = self._connection.read_all(commands)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = (
            summary(self._values(task_id), *answers[4 * i : 4 * i + 4], now_ms=now_ms) for i, task_id in enumerate(ids)
        )
        return sorted((task for task in found if task is not None), key=lambda task: (-task.age_s, task.id))

    def describe(self, task_id: str) -> Task | None:
        (fields,) = self._connection.read_all([("HMGET", _key(task_id, "task"), *TASK_FIELDS)])
        return described(task_id, fields)

    def queue(self, task_id: str) -> Carrier:
        return self._own_queue(task_id) if self._open_queue is None else self._open_queue(task_id)

    def submit(self, task: Task) -> None:
        check_task(task)
        arguments: Command = [task.name, task.num_seats, to_json(task.description), task.file, KEPT_S]
        if not self._connection.run(redis_scripts.SUBMIT, [_key(task.id, "task")], arguments):
            raise BoardError(f"the board has a task {task.id} already")
        self._list(task.id)

    def cancel(self, task_id: str, reason: str) -> bool:
        return bool(self._connection.run(redis_scripts.CANCEL, [_key(task_id, "task")], [reason, KEPT_S]))

    def rows(self, task_id: str, start: int) -> list[tuple[int, str]]:
        found = self._connection.run(redis_scripts.ROWS, [], [_key(task_id, "rows"), start])
        return numbered_rows(self._values(task_id), found)

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        task, banned, epochs = _keys(task_id, "task", "banned", "epochs")
        arguments: Command = [task, member, milliseconds(lease_s), banned, actor_of(member), epochs]
        index, epoch = self._connection.run(redis_scripts.CLAIM, [_key(task_id, "seats")], arguments)
        if index == -2:
            raise BannedError(task_id)
        return None if index < 0 else Seat(task_id, int(index), int(epoch), member, lease_s)

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        read = _keys(seat.task_id, "task", "got", "in:0", "trainer", "epochs")
        sent = [self._own_queue(seat.task_id).push(messages)] if messages else []
        arguments: Command = [*read, seat.index, seat.epoch, seat.member, milliseconds(seat.lease_s)]
        status, *more = self._connection.run(redis_scripts.BEAT, [_key(seat.task_id, "seats")], arguments, sent)
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return Beat(None, -1, NOTHING_GOT)
        version, got, num_queued, is_led = map(int, more)
        return Beat(TaskStatus(status.decode()), version, got, num_queued, bool(is_led))

    def release(self, seat: Seat) -> None:
        arguments: Command = [seat.index, seat.epoch, seat.member]
        self._connection.run(redis_scripts.RELEASE, [_key(seat.task_id, "seats")], arguments)

    def get_blob(self, task_id: str, name: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
        key = _key(task_id, f"blob:{check_name(name)}")
        (text,) = self._connection.read_all([("HGET", key, "head")])
        head = self._values(task_id).read(f"blob:{name} head", text, lambda value: BlobHead.parse(value.decode()), None)
        if head is None:
            return None
        if head.num_bytes > max_bytes:
            raise InvalidMessageError(f"it has {head.num_bytes} bytes, more than {max_bytes}")
        content = bytearray()
        for index in range(head.num_chunks):
            (piece,) = self._connection.read_all([("HGET", key, str(index))])
            if not isinstance(piece, bytes) or len(piece) > CHUNK_BYTES:
                return None
            content += piece
        whole = bytes(content)
        return whole if head.fits(whole) else None

    def ban(self, lead: Lead, actor: str) -> None:
        keys = _keys(lead.task_id, "trainer", "seats", "epochs", "banned")
        self._connection.run(redis_scripts.BAN, keys, [lead.epoch, lead.member, actor, KEPT_S])

    def announce(self, task: Task, epochs: Mapping[int, int] | None = None) -> None:
        check_task(task)
        # Loaded here, and not when one is missing, as actors may be of another version than earlier ones.
        self._connection.load_scripts()
        keys = _keys(task.id, "task", "epochs")
        known = [number for pair in (epochs or {}).items() for number in pair]
        arguments: Command = [task.name, task.num_seats, to_json(task.description), task.file, KEPT_S, *known]
        self._connection.run(redis_scripts.ANNOUNCE, keys, arguments)
        self._remember(task)
        self._list(task.id, mends=True)
        self._forget_old()

    def lead(self, task_id: str, member: str, lease_s: float, epoch: int = 0) -> Lead | None:
        arguments: Command = [_key(task_id, "task"), member, milliseconds(lease_s), epoch, KEPT_S]
        given = int(self._connection.run(redis_scripts.LEAD, [_key(task_id, "trainer")], arguments))
        return Lead(task_id, given, member, lease_s) if given else None

    def received(self, task_id: str) -> dict[tuple[int, int], int]:
        (fields,) = self._connection.read_all([("HGETALL", _key(task_id, "got"))])
        return received_of(self._values(task_id), fields)

    def publish(self, lead: Lead, news: News) -> TrainerBeat | Fenced:
        keys = _keys(lead.task_id, "trainer", "task", "got", "figures", "seats", "epochs", "in:0")
        got = [number for (seat, epoch), highest in news.got.items() for number in (seat, epoch, highest)]
        arguments: Command = [
            lead.epoch,
            lead.member,
            milliseconds(lead.lease_s),
            KEPT_S,
            news.weights_version,
            to_json(news.figures),
            *self._announced.get(lead.task_id, _NOT_ANNOUNCED),
        ]
        status, *more = self._connection.run(redis_scripts.PUBLISH, keys, [*arguments, *got])
        if status == b"fenced":
            return Fenced()
        if status == b"unknown":
            return TrainerBeat(None)
        now, num_queued, seats, mended = more
        for name in mended:
            self.unreadable.add(lead.task_id, name.decode("ascii", "replace"), "removed or written again")
        if time.monotonic() - self._listed_s > _LISTED_S:
            self._list(lead.task_id, mends=True)
        held = holders(self._values(lead.task_id), seats, int(now))
        return TrainerBeat(TaskStatus(status.decode()), held, int(num_queued))

    def put_blob(self, lead: Lead, name: str, content: bytes) -> bool:
        key = _key(lead.task_id, f"blob:{check_name(name)}")
        written = f"{key}:{lead.epoch}:{secrets.token_hex(4)}"
        for index, chunk in enumerate(chunks(content)):
            self._connection.call_all([("HSET", written, str(index), chunk), ("EXPIRE", written, _UPLOAD_S)])
        head = BlobHead.of(content).to_text()
        self._connection.call_all([("HSET", written, "head", head), ("EXPIRE", written, _UPLOAD_S)])
        keys = [_key(lead.task_id, "trainer"), written, key]
        return bool(self._connection.run(redis_scripts.PUT_BLOB, keys, [lead.epoch, lead.member, KEPT_S]))

    def drop_blob(self, lead: Lead, name: str) -> None:
        keys = _keys(lead.task_id, "trainer", f"blob:{check_name(name)}")
        self._connection.run(redis_scripts.DROP_BLOB, keys, [lead.epoch, lead.member])

    def put_rows(self, lead: Lead, rows: Sequence[str]) -> bool:
        keys = _keys(lead.task_id, "trainer", "rows")
        arguments: Command = [lead.epoch, lead.member, KEPT_S, KEPT_ROWS, *check_rows(rows)]
        return bool(self._connection.run(redis_scripts.PUT_ROWS, keys, arguments))

    def give_up(self, lead: Lead) -> None:
        self._connection.run(redis_scripts.GIVE_UP, [_key(lead.task_id, "trainer")], [lead.epoch, lead.member, KEPT_S])

    def finish(self, lead: Lead, status: TaskStatus, reason: str = "") -> None:
        keys = _keys(lead.task_id, "trainer", "task", "in:0")
        self._connection.run(redis_scripts.FINISH, keys, [lead.epoch, lead.member, status.value, reason, KEPT_S])

    def close(self) -> None:
        self._connection.close()

    def _forget_old(self) -> None:
        """Remove tasks without keys from the list, and the last messages of actors of removed and ended tasks.

        Nobody reads such a queue. Actors may not set an expiry, so a queue that they start again has none.
        """
        members = self._connection.call("SMEMBERS", _TASKS)
        ids = sorted(_names(members))
        statuses = self._connection.read_all([("HGET", _key(task_id, "task"), "status") for task_id in ids])
        absent = [task_id for task_id, status in zip(ids, statuses, strict=True) if status is None]
        # A client may have deleted the one key that it can write; the trainer then writes it again.
        were_led = self._connection.call_all([("EXISTS", _key(task_id, "trainer")) for task_id in absent])
        gone = [task_id for task_id, was_led in zip(absent, were_led, strict=True) if not was_led]
        over = [task_id for task_id, status in zip(ids, statuses, strict=True) if status in _OVER]
        self._connection.call_all([("UNLINK", _key(task_id, "in:0")) for task_id in [*gone, *over]])
        strange = [member for member in members if not _names([member])]
        if gone or strange:
            self._connection.call("SREM", _TASKS, *gone, *strange)

    def _list(self, task_id: str, *, mends: bool = False) -> None:
        """Add a task to the list; ``mends``: this user may remove a key of another type."""
        try:
            self._connection.call("SADD", _TASKS, task_id)
        except WrongTypeError:
            if not mends:
                raise
            self.unreadable.add("", _TASKS, "removed")
            self._connection.call_all([("UNLINK", _TASKS), ("SADD", _TASKS, task_id)])
        self._listed_s = time.monotonic()

    def _remember(self, task: Task) -> None:
        """Store the fields of an announced task, which nobody may change; they may be another trainer's."""
        found: Any
        (found,) = self._connection.read_all([("HMGET", _key(task.id, "task"), *TASK_FIELDS)])
        try:
            is_whole = described(task.id, found) is not None
        except UnreadableError:
            is_whole = False
        own = (task.name, str(task.num_seats), to_json(task.description), task.file)
        self._announced[task.id] = [value or b"" for value in found] if is_whole else [value.encode() for value in own]

    def _values(self, task_id: str) -> TaskValues:
        return TaskValues(task_id, self.unreadable)

    def _own_queue(self, task_id: str) -> RedisCarrier:
        return RedisCarrier(self._connection, _key(task_id, "in:0"))


def _names(members: Iterable[bytes]) -> list[str]:
    """Return the ``members`` that are valid ids of tasks."""
    return [name for member in members if is_name(name := member.decode("ascii", "replace"))]


def _keys(task_id: str, *names: str) -> list[str]:
    return [_key(task_id, name) for name in names]


def _key(task_id: str, name: str) -> str:
    return f"rlexp:{{{check_name(task_id)}}}:{name}"
