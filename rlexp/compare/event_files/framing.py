"""The records of an event file: TFRecord frames and their checksums, found without decoding the data inside.

A frame is the length (uint64), the length's masked CRC (uint32), the data, and the data's masked CRC
(uint32), all little-endian. The start of each frame follows from the length of the previous one, so a loop
has to visit them one by one. But writers write the same tags in the same order, so the lengths repeat
with a period. Where they have repeated, thousands of lengths are predicted and checked at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from rlexp.sample_batch import Array

HEADER_BYTES: Final = 12
FRAME_BYTES: Final = 16
"""The bytes of a frame without its data."""
CHECKSUM_BYTES: Final = 4
BLOCK: Final = 4096
"""Bytes that one pass over the CRC table covers; the table has 1 KiB for each."""

_WALKED = 256
"""Frames visited one by one before a prediction."""
_LONGEST_PERIOD = _WALKED // 2
_KNOWN_LENGTHS = 1 << 16
"""Lengths with a cached checksum: a file with more different lengths must not fill the memory."""

_HEADER = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_unpack_header = struct.Struct("<QI").unpack_from

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF


@dataclass(frozen=True)
class Frames:
    """The complete frames at the start of a buffer."""

    lengths: Array
    """``[N]``, int64: bytes of data in each."""
    end: int
    """Start of the first incomplete or damaged frame; the buffer's size if there is none."""
    damaged: bool
    """Whether the length of the frame at ``end`` does not match its checksum."""
    wanted: int
    """Size in bytes of the frame at ``end`` according to its header; 0 if the header is incomplete or damaged."""

    @property
    def starts(self) -> Array:
        """``[N]``, int64: where the data of each begins."""
        return HEADER_BYTES + _before_each(self.lengths)


class Framing:
    """Finds the frames in the buffers of one file; caches the checksums of their lengths."""

    def __init__(self) -> None:
        self._checksums: dict[int, int] = {}

    def frames(self, buffer: memoryview) -> Frames:
        """Return the complete frames at the start of ``buffer``, which begins with a frame."""
        pieces: list[Array] = []
        position, count = 0, 4 * _WALKED
        while True:
            walked, position, damaged, wanted = self._walk(buffer, position)
            pieces.append(np.array(walked, np.int64))
            if len(walked) < _WALKED:
                return Frames(np.concatenate(pieces), position, damaged, wanted)
            predicted = self._predict(buffer, position, walked, count)
            pieces.append(predicted)
            position += int((predicted + FRAME_BYTES).sum())
            count = 2 * count if len(predicted) >= count else 4 * _WALKED

    def _walk(self, buffer: memoryview, position: int) -> tuple[list[int], int, bool, int]:
        """Visit frames one by one; return their lengths, and of the next frame its start, ``damaged`` and ``wanted``.

        There are fewer than ``_WALKED`` only if the next one is incomplete or damaged.
        """
        lengths: list[int] = []
        size, checksums = len(buffer), self._checksums
        while len(lengths) < _WALKED and position + HEADER_BYTES <= size:
            length, checksum = _unpack_header(buffer, position)
            if checksums.get(length) != checksum and self._checksum(length) != checksum:
                return lengths, position, True, 0
            after = position + FRAME_BYTES + length
            if after > size:
                return lengths, position, False, FRAME_BYTES + length
            lengths.append(length)
            position = after
        return lengths, position, False, 0

    def _predict(self, buffer: memoryview, position: int, walked: list[int], count: int) -> Array:
        """Return the lengths of at least ``count`` frames at ``position``; fewer if they stop repeating ``walked``."""
        period = next(
            (p for p in range(1, _LONGEST_PERIOD + 1) if walked[p] == walked[0] and walked[p:] == walked[:-p]), 0
        )
        if not period:
            return np.empty(0, np.int64)
        repeats = -(-count // period)
        lengths = np.tile(np.array(walked[-period:], np.int64), repeats)
        checksums = np.tile(np.array([self._checksum(length) for length in walked[-period:]], np.uint32), repeats)
        starts = position + _before_each(lengths)
        inside = int(np.searchsorted(starts + FRAME_BYTES + lengths, len(buffer), side="right"))
        anywhere = np.ndarray((len(buffer) - HEADER_BYTES + 1,), _HEADER, buffer, strides=(1,))
        headers = anywhere[starts[:inside]]
        right = (headers["length"] == lengths[:inside].astype(np.uint64)) & (headers["checksum"] == checksums[:inside])
        return lengths[: inside if right.all() else int(right.argmin())]

    def _checksum(self, length: int) -> int:
        known = self._checksums.get(length)
        if known is not None:
            return known
        checksum = length_checksum(length)
        if len(self._checksums) < _KNOWN_LENGTHS:
            self._checksums[length] = checksum
        return checksum


def begins_with_frame(data: bytes) -> bool:
    """Return whether ``data`` can be the beginning of an event file: a valid header, or too few bytes for one."""
    if len(data) < HEADER_BYTES:
        return True
    length, checksum = _unpack_header(data)
    return bool(length_checksum(int(length)) == checksum)


def length_checksum(length: int) -> int:
    """Return the masked CRC that follows ``length`` in a frame."""
    return masked(crc32c(np.frombuffer(length.to_bytes(8, "little"), np.uint8)))


def _before_each(lengths: Array) -> Array:
    before: Array = np.cumsum(lengths + FRAME_BYTES) - (lengths + FRAME_BYTES)
    return before


# CRC-32C (Castagnoli, RFC 3720) is linear: over a message of n bytes it is the exclusive or of what each byte
# contributes at its distance from the end. One table of these contributions replaces the loop over bytes by
# gathers, and records that differ in a few bytes need only the gathers of those bytes.


def crc32c(data: Array) -> int:
    """Return the CRC of ``data [N]``, uint8."""
    state = _ONES
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        table = _table(_rows_for(len(block) - 1))
        contributed = np.bitwise_xor.reduce(table[np.arange(len(block) - 1, -1, -1), block])
        state = int(contributed) ^ _carried(state, len(block))
    return state ^ _ONES


def masked(crc: int) -> int:
    """Return ``crc`` as a TFRecord stores it: the CRC of data that contains CRCs would detect few errors."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def masked_array(crcs: Array) -> Array:
    """Return ``masked`` of each of ``crcs [N]``, uint32."""
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)


def contributions(distances: Array) -> Array:
    """Return ``[D, 256]``, uint32: what each value of a byte adds to the CRC, ``distances [D]`` bytes from the end.

    Distances are less than BLOCK.
    """
    return _table(_rows_for(int(distances.max(initial=0))))[distances]


def _carried(state: int, length: int) -> int:
    """Return what ``state`` becomes after ``length`` bytes: it is xored onto the first four of them."""
    table = _table(_rows_for(length - 1))
    crc = state >> 8 * length if length < 4 else 0
    for index in range(min(length, 4)):
        crc ^= int(table[length - 1 - index, state >> 8 * index & 0xFF])
    return crc


def _rows_for(distance: int) -> int:
    """Return how large a table to build: most records are short, and a table for those is built fast."""
    return 256 if distance < 256 else BLOCK


@cache
def _table(rows: int) -> Array:
    """Return ``[rows, 256]``, uint32: the CRC, from a state of zero, of each byte followed by ``row`` zero bytes."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = crc >> np.uint32(1) ^ np.where(crc & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    table = np.empty((rows, 256), np.uint32)
    table[0] = crc
    for row in range(1, rows):
        table[row] = table[row - 1] >> np.uint32(8) ^ crc[table[row - 1] & np.uint32(0xFF)]
    return table
