"""What the values of a Redis mean: leases, rows and lines of the list of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlexp.json_file import parse_json
from rlexp.transport.board import SeatHolder, TaskStatus, TaskSummary
from rlexp.transport.board_errors import BoardError

SUMMARY_FIELDS: Final = ("name", "status", "reason", "seats", "announced", "submitted", "weights")
"""Of a task's hash, those that a list shows."""


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one."""
    return max(math.ceil(seconds * 1000), 1)


def holders(seats: Sequence[bytes], now_ms: int) -> tuple[SeatHolder, ...]:
    """Return who holds or held the seats, by index; ``seats`` are indices and leases in turn."""
    found = []
    for index, value in zip(seats[::2], seats[1::2], strict=True):
        expires, epoch, member = _lease(value)
        found.append(SeatHolder(int(index), epoch, member, max(expires - now_ms, 0) / 1000))
    return tuple(sorted(found, key=lambda holder: holder.index))


def numbered_row(value: bytes) -> tuple[int, str]:
    """Return a result row with its number; raises ValueError where it has none."""
    number, _, row = value.decode().partition(" ")
    return int(number), row


def received_of(fields: Mapping[bytes, bytes]) -> dict[tuple[int, int], int]:
    """Return numbers by seat and epoch, from those by the text ``SEAT:EPOCH``; may raise ValueError."""
    found = {}
    for field, number in fields.items():
        seat, _, epoch = field.decode().partition(":")
        found[int(seat), int(epoch)] = int(number)
    return found


def summary(
    task_id: str,
    task: Sequence[Any],
    trainer: bytes | None,
    seats: Mapping[bytes, bytes],
    figures: bytes | None,
    *,
    now_ms: int,
) -> TaskSummary:
    """Return a line of the list of tasks; ``task`` are its SUMMARY_FIELDS.

    Raises AttributeError, ValueError or BoardError where they are not what a board keeps.
    """
    name, status, reason, num_seats, announced, submitted, weights = (field.decode() for field in task)
    expires, _, member = _lease(trainer)
    published = parse_json(figures or b"{}")
    return TaskSummary(
        id=task_id,
        name=name,
        status=TaskStatus(status),
        reason=reason,
        num_seats=int(num_seats),
        taken=tuple(sorted(int(index) for index, lease in seats.items() if _lease(lease)[0] > now_ms)),
        trainer=member if expires > now_ms else None,
        age_s=max(now_ms - int(announced), 0) / 1000,
        is_submitted=submitted == "1",
        figures=published if isinstance(published, dict) else {},
        weights_version=int(weights),
    )


def _lease(value: bytes | None) -> tuple[int, int, str]:
    """Return when a lease ends, in ms of the server's clock, its epoch and its member."""
    try:
        expires, epoch, member = (value or b"0 0 ").decode().split(" ", 2)
        return int(expires), int(epoch), member
    except ValueError as error:
        raise BoardError("the board has a lease that cannot be read") from error
