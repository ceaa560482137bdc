"""The values in a Redis: each is read with its type and bounds, or counts as absent and is reported.

Anybody with a role on the board may have written them. The scripts read leases, numbers and states by the same rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from rlexp.board.messages.basics import (
    MAX_DESCRIPTION_BYTES,
    MAX_ROW_BYTES,
    MOST_SEATS,
    Task,
    UnreadableError,
    UnreadableValues,
    check_task,
)
from rlexp.board.servers.board import SeatHolder, TaskStatus, TaskSummary
from rlexp.files import parse_json

SUMMARY_FIELDS: Final = ("name", "status", "reason", "seats", "announced", "submitted", "weights")
"""The fields of a task's hash that a list shows."""
TASK_FIELDS: Final = ("name", "seats", "description", "file")
"""The fields that make a task; they do not change after its announcement."""
EPOCH_AHEAD_MS: Final = 10**10
"""Most ms that an epoch may be ahead of the server's clock; a higher one would leave nobody a higher one."""
LONGEST_LEASE_MS: Final = 25 * 3600 * 1000
"""An hour above the most of ``board.lease_s``, as the server's clock may have been set back since."""
MOST_LEASE_BYTES: Final = 300
_LARGEST: Final = 10**15
_LARGEST_IN_JSON: Final = 2**64
_MOST_NAME_BYTES: Final = 1000
_MOST_REASON_BYTES: Final = 10_000
_NUMBER: Final = re.compile(rb"-?[0-9]{1,16}")
_LEASE: Final = re.compile(rb"([0-9]{1,16}) ([0-9]{1,16}) ([ -~]*)")
_NO_LEASE: Final = (0, 0, "")
_Lease = tuple[int, int, str]
"""Its end in ms of the server's clock, its epoch and its member."""
T = TypeVar("T")


class TaskValues:
    """Reads the values of one task; what cannot be read is reported to ``unreadable``."""

    def __init__(self, task_id: str, unreadable: UnreadableValues) -> None:
        self.task_id = task_id
        self._unreadable = unreadable

    def read(self, name: str, value: Any, parse: Callable[[bytes], T], absent: T) -> T:
        """Return ``parse`` of a value; ``absent`` if it is None or cannot be parsed."""
        if value is None:
            return absent
        try:
            return parse(_bytes(value))
        except ValueError:
            self._unreadable.add(self.task_id, name)
            return absent

    def fields(self, name: str, value: Any) -> Mapping[bytes, bytes]:
        """Return the fields of a hash; none if the key holds another type."""
        if isinstance(value, Mapping):
            return value
        self._unreadable.add(self.task_id, name)
        return {}


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one."""
    return max(math.ceil(seconds * 1000), 1)


def holders(values: TaskValues, seats: Sequence[bytes], now_ms: int) -> tuple[SeatHolder, ...]:
    """Return the present or last holders of the seats, by index; ``seats`` are indices and leases in turn."""
    found = []
    for field, value in zip(seats[::2], seats[1::2], strict=True):
        index, lease = values.read("seats", field, _index, None), values.read("seats", value, _lease(now_ms), None)
        if index is not None and lease is not None:
            expires, epoch, member = lease
            found.append(SeatHolder(index, epoch, member, max(expires - now_ms, 0) / 1000))
    return tuple(sorted(found, key=lambda holder: holder.index))


def numbered_rows(values: TaskValues, rows: Sequence[bytes]) -> list[tuple[int, str]]:
    """Return result rows with their numbers."""
    found = (values.read("rows", row, _numbered_row, None) for row in rows)
    return [row for row in found if row is not None]


def received_of(values: TaskValues, fields: Any) -> dict[tuple[int, int], int]:
    """Return numbers by seat and epoch, from fields with the text ``SEAT:EPOCH``."""
    found = {}
    for field, number in values.fields("got", fields).items():
        place = values.read("got", field, _seat_and_epoch, None)
        count = values.read("got", number, whole(-1), None)
        if place is not None and count is not None:
            found[place] = count
    return found


def summary(
    values: TaskValues, task: Any, trainer: Any, seats: Any, figures: Any, *, now_ms: int
) -> TaskSummary | None:
    """Return a line of the list of tasks; ``task`` are its SUMMARY_FIELDS. None if there is no task.

    A task with a trainer is always listed, whatever others wrote about it, as its trainer writes it again.
    """
    if not isinstance(task, Sequence):
        values.fields("task", task)  # this reports it
        task = [None] * len(SUMMARY_FIELDS)
    given = dict(zip(SUMMARY_FIELDS, task, strict=True))
    expires, _, member = values.read("trainer", trainer, _lease(now_ms), _NO_LEASE)
    is_led = expires > now_ms
    status = values.read("task status", given["status"], _status, None)
    num_seats = values.read("task seats", given["seats"], whole(0, MOST_SEATS), None)
    if not is_led and (status is None or num_seats is None):
        if any(value is not None for value in task):
            values.read("task seats" if num_seats is None else "task status", b"", _status, None)
        return None
    holds = [
        values.read("seats", index, _index, MOST_SEATS)
        for index, lease in values.fields("seats", seats).items()
        if values.read("seats", lease, _lease(now_ms), _NO_LEASE)[0] > now_ms
    ]
    announced = values.read("task announced", given["announced"], whole(), now_ms)
    return TaskSummary(
        id=values.task_id,
        name=values.read("task name", given["name"], text(_MOST_NAME_BYTES), values.task_id),
        status=status or TaskStatus.RUNNING,
        reason=values.read("task reason", given["reason"], text(_MOST_REASON_BYTES), ""),
        num_seats=num_seats or 0,
        taken=tuple(sorted(index for index in holds if index < (num_seats or 0))),
        trainer=member if is_led else None,
        age_s=max(now_ms - announced, 0) / 1000,
        is_submitted=given["submitted"] == b"1",
        figures=values.read("figures", figures, _object, {}),
        weights_version=values.read("task weights", given["weights"], whole(-1), -1),
    )


def described(task_id: str, fields: Any) -> Task | None:
    """Return a task from its TASK_FIELDS; None if it has none; raises UnreadableError if one is invalid."""
    if not isinstance(fields, Sequence):
        raise UnreadableError(task_id, "task")
    if all(value is None for value in fields):
        return None
    name, seats, description, file = fields
    readers: Sequence[tuple[str, Any, Callable[[bytes], Any]]] = (
        ("name", name, text(_MOST_NAME_BYTES)),
        ("seats", seats, whole(1, MOST_SEATS)),
        ("description", description, _object),
        ("file", file or b"", text(MAX_DESCRIPTION_BYTES)),
    )
    found = []
    for key, value, parse in readers:
        try:
            found.append(parse(_bytes(value)))
        except ValueError as error:
            raise UnreadableError(task_id, f"task {key}") from error
    try:
        return check_task(Task(task_id, *found))
    except ValueError as error:
        raise UnreadableError(task_id, "task") from error


def whole(low: int = 0, high: int = _LARGEST) -> Callable[[bytes], int]:
    """Return a parser of whole numbers between two bounds."""

    def parse(value: bytes) -> int:
        if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
            raise ValueError("no whole number, or out of its range")
        return int(value)

    return parse


def text(most_bytes: int) -> Callable[[bytes], str]:
    """Return a parser of UTF-8 with at most so many bytes."""

    def parse(value: bytes) -> str:
        if len(value) > most_bytes:
            raise ValueError("too long")
        return value.decode()

    return parse


_index: Final = whole(0, MOST_SEATS - 1)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a key of another type")
    return value


def _status(value: bytes) -> TaskStatus:
    return TaskStatus(text(_MOST_NAME_BYTES)(value))


def _lease(now_ms: int) -> Callable[[bytes], _Lease]:
    def parse(value: bytes) -> _Lease:
        match = _LEASE.fullmatch(value) if len(value) <= MOST_LEASE_BYTES else None
        if match is None:
            raise ValueError("no lease")
        expires, epoch = int(match[1]), int(match[2])
        if expires > now_ms + LONGEST_LEASE_MS or epoch > now_ms + EPOCH_AHEAD_MS:
            raise ValueError("a lease that no board gives")
        return expires, epoch, match[3].decode()

    return parse


def _seat_and_epoch(field: bytes) -> tuple[int, int]:
    seat, _, epoch = field.partition(b":")
    return _index(seat), whole()(epoch)


def _numbered_row(value: bytes) -> tuple[int, str]:
    number, _, row = value.partition(b" ")
    return whole()(number), text(MAX_ROW_BYTES)(row)


def _object(value: bytes) -> Mapping[str, Any]:
    """Return a JSON object with finite numbers and encodable texts."""
    found = parse_json(text(MAX_DESCRIPTION_BYTES)(value))
    if not isinstance(found, dict):
        raise ValueError("no object")
    _check_values(found)
    return found


def _check_values(content: Any) -> None:
    """Raise ValueError for numbers and texts that are valid JSON but that readers do not expect."""
    items = [content]
    while items:
        item = items.pop()
        if isinstance(item, dict):
            items += [*item, *item.values()]
        elif isinstance(item, list):
            items += item
        elif isinstance(item, str):
            item.encode()  # half of a surrogate pair raises
        elif isinstance(item, int | float) and not abs(item) < _LARGEST_IN_JSON:
            raise ValueError("a number that is not finite, or too large")
