"""Records of one shape: alike in every byte but the time, the step, the letters of their tags and the numbers.

Whoever writes scalars writes thousands of such records. The first one is parsed. Where the bytes that
make its structure (field numbers, lengths, the bits that tell where a varint ends) stand at the same
places in another record, that one means the same. So the records of a whole chunk are read by
comparing 64-bit words and slicing columns; a row is a record, its checksum and padding.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.results.event_files.checksums import BLOCK, contributions, crc32c, masked_array
from rlexp.results.event_files.messages import SCALAR, Event
from rlexp.results.event_files.numbers import Number, decoded
from rlexp.results.event_files.points import POINT, TagNumbers
from rlexp.sample_batch import Array

LONGEST: Final = BLOCK
"""Bytes that a record with a shape may have: further from their end, contributions to a checksum are not tabled."""

CHECKSUM_BYTES: Final = 4
_WALL_TIME_BYTES = 8
_CONTINUES = 0x80
_MOST_SPELLINGS = 1 << 16
_GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: its odd multiples make sums of words that are hardly ever equal by chance."""


def row_bytes(length: int) -> int:
    """Return how wide the row of a record of ``length`` bytes is: whole words."""
    return -(-(length + CHECKSUM_BYTES) // 8) * 8


def has_shape(event: Event) -> bool:
    """Tell whether ``event`` is made of scalars whose bytes lie in it as they are."""
    numbers = [value.number for value in event.values if value.kind == SCALAR]
    plain = all(number is not None and number.at is not None for number in numbers)
    return bool(numbers) and plain and len(numbers) == len(event.values) and not event.starts_session


class Shape:
    """One shape of records, and the tags ("a spelling" is one of each value) that were met in it."""

    def __init__(self, record: bytes, event: Event, tags: TagNumbers) -> None:
        """Take the shape of ``record``, which says ``event``; ``tags`` numbers the tags."""
        self._event, self._tags = event, tags
        self._length = len(record)
        self._varying, spelt = _masks(len(record), event)
        fixed = spelt.copy()
        for value in event.values:
            fixed[slice(*value.tag_at)] = 0
        self._spelt, self._fixed = spelt.view("<u8"), fixed.view("<u8")
        padded = record.ljust(len(fixed), b"\0")
        self._first = np.frombuffer(padded, "<u8") & self._fixed
        self._contributions = contributions(self._length - 1 - self._varying)
        self._weights = np.arange(1, 2 * len(self._fixed), 2).astype(np.uint64) * np.uint64(_GOLDEN)
        self._spellings: dict[bytes, int] = {}
        self._tag_numbers: list[list[int]] = []
        self._checksums: list[int] = []

    def fits(self, words: Array) -> Array:
        """Tell which of the rows ``words [N, W]``, uint64, have this shape."""
        fits: Array = ((words & self._fixed) == self._first).all(axis=1)
        return fits

    def read(self, words: Array, records: Array) -> tuple[list[Array], Array]:
        """Return the points in rows that fit, of the records numbered ``records [N]``, and which rows are damaged."""
        spellings = self._spellings_of(words)
        rows = words.view(np.uint8)
        right = self._are_right(rows, spellings)
        if not right.all():
            rows, records, spellings = rows[right], records[right], spellings[right]
        return self._points(rows, records, np.array(self._tag_numbers, np.int64)[spellings]), ~right

    def _spellings_of(self, words: Array) -> Array:
        """Return the number ``[N]`` of each row's spelling."""
        if len(self._spellings) > _MOST_SPELLINGS:
            self._forget()
        spelt = words & self._spelt
        if (spelt == spelt[0]).all():
            return np.full(len(spelt), self._spelling(spelt[0]))
        _, firsts, groups = np.unique((spelt * self._weights).sum(axis=1), return_index=True, return_inverse=True)
        spellings = np.array([self._spelling(row) for row in spelt[firsts]])[groups]
        for stray in np.flatnonzero((spelt != spelt[firsts][groups]).any(axis=1)):  # two spellings had the same sum
            spellings[stray] = self._spelling(spelt[stray])
        return spellings

    def _spelling(self, row: Array) -> int:
        key = row.tobytes()
        known = self._spellings.get(key)
        if known is not None:
            return known
        tags = [key[slice(*value.tag_at)] or value.tag for value in self._event.values]
        self._tag_numbers.append([self._tags.number(tag) for tag in tags])
        constant = np.frombuffer(key, np.uint8)[: self._length].copy()
        constant[self._varying] = 0
        self._checksums.append(crc32c(constant))
        self._spellings[key] = len(self._spellings)
        return self._spellings[key]

    def _forget(self) -> None:
        self._spellings.clear()
        self._tag_numbers.clear()
        self._checksums.clear()

    def _are_right(self, rows: Array, spellings: Array) -> Array:
        """Tell of each row whether its checksum is that of its data."""
        checksums = np.array(self._checksums, np.uint32)[spellings]
        for contribution, at in zip(self._contributions, self._varying.tolist(), strict=True):
            checksums ^= contribution[rows[:, at]]
        stored = np.ascontiguousarray(rows[:, self._length : self._length + CHECKSUM_BYTES]).view("<u4")[:, 0]
        right: Array = masked_array(checksums) == stored
        return right

    def _points(self, rows: Array, records: Array, tags: Array) -> list[Array]:
        """Return ``[N]`` of POINT for every value of the shape; ``tags [N, values]``."""
        points = np.empty(len(rows), POINT)
        points["record"] = records
        points["step"] = self._steps(rows)
        at = self._event.wall_time_at
        points["wall_time"] = 0.0 if at is None else decoded(rows[:, at : at + _WALL_TIME_BYTES], "<f8")
        pieces = []
        for index, value in enumerate(self._event.values):
            assert value.number is not None
            begin, end = _span(value.number)
            points["tag"] = tags[:, index]
            points["value"] = decoded(rows[:, begin:end], value.number.format)
            pieces.append(points if len(self._event.values) == 1 else points.copy())
        return pieces

    def _steps(self, rows: Array) -> Array:
        steps = np.zeros(len(rows), np.uint64)
        for index, at in enumerate(range(*self._event.step_at)):
            steps |= (rows[:, at] & np.uint8(_CONTINUES - 1)).astype(np.uint64) << np.uint64(7 * index)
        return steps.view(np.int64)


def _masks(length: int, event: Event) -> tuple[Array, Array]:
    """Return where the bytes lie that vary, and a mask of the others: tags, and what makes the structure."""
    varying = [*range(*event.step_at)]
    if event.wall_time_at is not None:
        varying += range(event.wall_time_at, event.wall_time_at + _WALL_TIME_BYTES)
    for value in event.values:
        assert value.number is not None
        varying += range(*_span(value.number))
    mask = np.zeros(row_bytes(length), np.uint8)
    mask[:length] = 0xFF
    mask[varying] = 0
    mask[slice(*event.step_at)] = _CONTINUES
    return np.array(varying, np.int64), mask


def _span(number: Number) -> tuple[int, int]:
    assert number.at is not None
    return number.at, number.at + len(number.raw)
