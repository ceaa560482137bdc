"""Protobuf's wire format: fields one after the other, each with a number and a way to find its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_LONGEST_VARINT = 10

Field = tuple[int, int, int, int, int]
"""Number, wire type, where its payload begins and ends, and its value where it is a varint (else 0)."""


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def fields(data: bytes, begin: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[begin:end]``; raises WireError where it is none."""
    while begin < end:
        key, begin = varint(data, begin, end)
        number, wire = key >> 3, key & 7
        value = 0
        payload = begin
        if wire == VARINT:
            value, begin = varint(data, begin, end)
        elif wire == BYTES:
            length, payload = varint(data, begin, end)
            begin = payload + length
        elif wire in (FIXED32, FIXED64):
            begin += 4 if wire == FIXED32 else 8
        else:
            raise WireError(f"field {number} has wire type {wire}")
        if begin > end:
            raise WireError(f"field {number} is longer than its message")
        yield number, wire, payload, begin, value


def varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at ``begin`` and where it ends; raises WireError where none ends before ``end``."""
    value = 0
    for index in range(begin, min(end, begin + _LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << 7 * (index - begin)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, index + 1
    raise WireError("a number does not end")


def signed(value: int) -> int:
    """Return the int64 whose two's complement is ``value``."""
    return value - (1 << 64) if value >> 63 else value
