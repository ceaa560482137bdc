"""Records of one shape, read together: they differ only in time, step, numbers and the letters of their tags.

Writers of scalars write thousands of such records. The first one is parsed. If the bytes that make its
structure (field numbers, lengths, the bits that mark the end of a varint) are the same in another record,
the other bytes have the same meaning there. So the records of a whole chunk are read by comparing 64-bit
words and slicing columns; a row is a record, its checksum and padding.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.compare.event_files.framing import BLOCK, CHECKSUM_BYTES, contributions, crc32c, masked_array
from rlexp.compare.event_files.messages import SCALAR, LogEvent, decoded
from rlexp.sample_batch import Array

POINT: Final = np.dtype([("tag", "<i8"), ("record", "<i8"), ("step", "<i8"), ("wall_time", "<f8"), ("value", "<f8")])
"""A scalar: ``tag`` and ``record`` are the numbers of these, ``wall_time`` is in seconds since 1970."""

MOST_TAGS: Final = 100_000
"""A file with a new tag in every record must not fill the memory: further tags are skipped, which is a fault."""

LONGEST: Final = BLOCK
"""Bytes of the longest record that has a shape: further from its end, the CRC table has no contributions."""

_WALL_TIME_BYTES = 8
_CONTINUES = 0x80
_MOST_SPELLINGS = 1 << 16
_GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: sums of words times its odd multiples are hardly ever equal by chance."""


class TagNumbers:
    """Numbers the tags of a file from 0, so that a column of tags is an array."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.left_out = False
        """Whether there were more than MOST_TAGS tags."""
        self._numbers: dict[bytes, int] = {}

    def number(self, tag: bytes) -> int:
        """Return the number of ``tag``, -1 if there are too many already."""
        number = self._numbers.get(tag)
        if number is None:
            if len(self.names) >= MOST_TAGS:
                self.left_out = True
                return -1
            number = self._numbers[tag] = len(self.names)
            self.names.append(tag.decode(errors="backslashreplace"))
        return number


class Shape:
    """One shape of records, and the spellings found in it: a spelling is one tag for each value."""

    def __init__(self, record: bytes, event: LogEvent, tags: TagNumbers) -> None:
        """Take the shape of ``record``, which contains ``event`` and has a shape; ``tags`` numbers the tags."""
        self._event, self._tags = event, tags
        self._length = len(record)
        self._numbers = _numbers(event)
        self._varying, spelt = _masks(len(record), event, [span for span, _ in self._numbers])
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
        """Return which of the rows ``words [N, W]``, uint64, have this shape."""
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
        for collision in np.flatnonzero((spelt != spelt[firsts][groups]).any(axis=1)):  # equal sums by chance
            spellings[collision] = self._spelling(spelt[collision])
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
        """Return for each row whether its checksum matches its data."""
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
        for index, (span, number_format) in enumerate(self._numbers):
            points["tag"] = tags[:, index]
            points["value"] = decoded(rows[:, span], number_format)
            pieces.append(points if len(self._numbers) == 1 else points.copy())
        return pieces

    def _steps(self, rows: Array) -> Array:
        steps = np.zeros(len(rows), np.uint64)
        for index, at in enumerate(range(*self._event.step_at)):
            steps |= (rows[:, at] & np.uint8(_CONTINUES - 1)).astype(np.uint64) << np.uint64(7 * index)
        return steps.view(np.int64)


def has_shape(event: LogEvent) -> bool:
    """Return whether ``event`` consists of scalars with numbers that need no unpacking."""
    scalars = all(value.kind == SCALAR for value in event.values)
    return scalars and 0 < len(event.values) == len(_numbers(event)) and not event.starts_session


def row_bytes(length: int) -> int:
    """Return the width of the row of a record of ``length`` bytes: whole words."""
    return -(-(length + CHECKSUM_BYTES) // 8) * 8


def _numbers(event: LogEvent) -> list[tuple[slice, str]]:
    """Return where the bytes of each number are, and their format; without those that had to be unpacked."""
    numbers = [value.number for value in event.values if value.number is not None]
    return [(slice(each.at, each.at + len(each.raw)), each.format) for each in numbers if each.at is not None]


def _masks(length: int, event: LogEvent, numbers: list[slice]) -> tuple[Array, Array]:
    """Return where the bytes are that vary, and a mask of the others: tags, and what makes the structure."""
    mask = np.zeros(row_bytes(length), np.uint8)
    mask[:length] = 0xFF
    spans = [slice(*event.step_at), *numbers]
    if event.wall_time_at is not None:
        spans.append(slice(event.wall_time_at, event.wall_time_at + _WALL_TIME_BYTES))
    for span in spans:
        mask[span] = 0
    varying = np.flatnonzero(mask[:length] == 0)
    mask[slice(*event.step_at)] = _CONTINUES
    return varying, mask
