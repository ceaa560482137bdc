"""CRC-32C (Castagnoli, RFC 3720), masked as TFRecord files have it: of one record, and of many that are nearly alike.

A CRC is linear: over a message of n bytes it is the exclusive or of what each byte contributes at its
distance from the end. One table of these contributions replaces the loop over bytes by gathers, and
records that differ in a few bytes need only the gathers of those.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rlexp.sample_batch import Array

BLOCK = 4096
"""Bytes that one pass over the table covers; the table has 1 KiB for each."""

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return what a TFRecord stores for ``crc``: a CRC of data that holds CRCs would be a weak one."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def masked_array(crcs: Array) -> Array:
    """Return ``masked`` of each of ``crcs [N]``, uint32."""
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)


def crc32c(data: Array) -> int:
    """Return the CRC of ``data [N]``, uint8."""
    state = _ONES
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        state = _xor_of(block, len(block) - 1) ^ _carried(state, len(block))
    return state ^ _ONES


def contributions(distances: Array) -> Array:
    """Return ``[D, 256]``, uint32: what each value of a byte adds to the CRC, ``distances [D]`` bytes from the end.

    Distances are less than BLOCK.
    """
    return _table(_rows_for(int(distances.max(initial=0))))[distances]


def _xor_of(block: Array, last: int) -> int:
    table = _table(_rows_for(last))
    return int(np.bitwise_xor.reduce(table[np.arange(last, -1, -1), block]))


def _carried(state: int, length: int) -> int:
    """Return what the state before ``length`` bytes becomes after them: it counts as laid over the first four."""
    table = _table(_rows_for(length - 1))
    crc = state >> 8 * length if length < 4 else 0
    for index in range(min(length, 4)):
        crc ^= int(table[length - 1 - index, state >> 8 * index & 0xFF])
    return crc


def _rows_for(distance: int) -> int:
    """Return how large a table to build: short records are most of all, and theirs is built in no time."""
    return 256 if distance < 256 else BLOCK


@cache
def _table(rows: int) -> Array:
    """Return ``[rows, 256]``, uint32: the CRC, from a state of zero, of each byte and as many zero bytes as the row."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = crc >> np.uint32(1) ^ np.where(crc & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    table = np.empty((rows, 256), np.uint32)
    table[0] = crc
    for row in range(1, rows):
        table[row] = table[row - 1] >> np.uint32(8) ^ crc[table[row - 1] & np.uint32(0xFF)]
    return table
