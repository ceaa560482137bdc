"""Where the records of an event file lie: TFRecord's frames, found without touching what is inside them.

A frame is the length (uint64), the length's masked CRC (uint32), the data, and the data's masked CRC
(uint32), all little-endian. A loop has to visit frame after frame, for each is found by the length of
the one before. But writers repeat themselves: the same tags come in the same order, so the same
lengths do. Where they have repeated, thousands of frames are guessed and checked in one stroke.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.results.event_files.checksums import crc32c, masked
from rlexp.sample_batch import Array

HEADER_BYTES: Final = 12
FRAME_BYTES: Final = 16
"""What a frame has beyond its data."""

_WALKED = 256
"""Frames visited one by one before a guess."""
_LONGEST_PERIOD = _WALKED // 2
_KNOWN_LENGTHS = 1 << 16
"""Lengths whose checksum is remembered: a file with more different ones must not fill the memory."""

_HEADER = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_unpack_header = struct.Struct("<QI").unpack_from


@dataclass(frozen=True)
class Frames:
    """The complete frames at the start of a buffer."""

    lengths: Array
    """``[N]``, int64: bytes of data in each."""
    end: int
    """Where the first frame begins that is incomplete or damaged; the buffer's size where none is."""
    damaged: bool
    """Whether the frame at ``end`` has a length that its checksum denies."""
    wanted: int
    """How many bytes the frame at ``end`` claims; 0 where its header is incomplete or damaged."""

    @property
    def starts(self) -> Array:
        """``[N]``, int64: where the data of each begins."""
        return HEADER_BYTES + _before_each(self.lengths)


class Framing:
    """Finds the frames in the buffers of one file; remembers the checksums of lengths that it has met."""

    def __init__(self) -> None:
        self._checksums: dict[int, int] = {}

    def frames(self, buffer: memoryview) -> Frames:
        """Return the complete frames at the start of ``buffer``, which begins with a frame."""
        pieces: list[Array] = []
        position, guess = 0, 4 * _WALKED
        while True:
            walked, position, damaged, wanted = self._walk(buffer, position)
            pieces.append(np.array(walked, np.int64))
            if len(walked) < _WALKED:
                return Frames(np.concatenate(pieces), position, damaged, wanted)
            guessed = self._guess(buffer, position, walked, guess)
            pieces.append(guessed)
            position += _bytes_of(guessed)
            guess = 2 * guess if len(guessed) >= guess else 4 * _WALKED

    def _walk(self, buffer: memoryview, position: int) -> tuple[list[int], int, bool, int]:
        """Visit frames one by one; return their lengths, where the next one is, if it is damaged, and what it claims.

        There are fewer than ``_WALKED`` only where the next one is incomplete or damaged.
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

    def _guess(self, buffer: memoryview, position: int, walked: list[int], count: int) -> Array:
        """Return the lengths of at least ``count`` frames at ``position``, fewer where they do not go on as before."""
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
        headers = _headers(buffer)[starts[:inside]]
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


def length_checksum(length: int) -> int:
    """Return the masked CRC that stands behind ``length`` in a frame."""
    return masked(crc32c(np.frombuffer(length.to_bytes(8, "little"), np.uint8)))


def begins_with_frame(data: bytes) -> bool:
    """Tell whether ``data`` can be the beginning of an event file: a right header, or too little to tell."""
    if len(data) < HEADER_BYTES:
        return True
    length, checksum = _unpack_header(data)
    return bool(length_checksum(int(length)) == checksum)


def _headers(buffer: memoryview) -> Array:
    """Return the header that would stand at each byte of ``buffer``."""
    headers: Array = np.ndarray((len(buffer) - HEADER_BYTES + 1,), _HEADER, buffer, strides=(1,))
    return headers


def _before_each(lengths: Array) -> Array:
    before: Array = np.cumsum(lengths + FRAME_BYTES) - (lengths + FRAME_BYTES)
    return before


def _bytes_of(lengths: Array) -> int:
    return int((lengths + FRAME_BYTES).sum())
