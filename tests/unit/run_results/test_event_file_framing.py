"""Checksums compared with TensorBoard's, and frames with a slow walk from frame to frame."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as slow_crc32c
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from rlexp.compare.event_files.framing import (
    BLOCK,
    Framing,
    begins_with_frame,
    contributions,
    crc32c,
    length_checksum,
    masked,
    masked_array,
)
from tests.unit.run_results.event_writing import frame


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_checksums_match_tensorboard(data: bytes) -> None:
    crc = crc32c(np.frombuffer(data, np.uint8))
    assert crc == slow_crc32c(data)
    assert masked(crc) == masked_crc32c(data)
    assert masked_array(np.array([crc], np.uint32))[0] == masked_crc32c(data)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 3, BLOCK + 4, 2 * BLOCK, 2 * BLOCK + 5])
def test_checksums_of_several_blocks(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=40), st.data())
def test_changed_byte_changes_checksum_by_contributions(data: bytes, draw: st.DataObject) -> None:
    at, byte = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 255))
    changed = bytearray(data)
    changed[at] = byte
    table = contributions(np.array([len(data) - 1 - at]))[0]
    expected = crc32c(np.frombuffer(data, np.uint8)) ^ int(table[data[at]]) ^ int(table[byte])
    assert crc32c(np.frombuffer(bytes(changed), np.uint8)) == expected


def walk(buffer: bytes) -> tuple[list[int], int, bool]:
    """Frame by frame: their lengths, where the rest begins, whether it is damaged."""
    lengths: list[int] = []
    position = 0
    while len(buffer) - position >= 12:
        length, checksum = struct.unpack_from("<QI", buffer, position)
        if masked_crc32c(struct.pack("<Q", length)) != checksum:
            return lengths, position, True
        if position + 16 + length > len(buffer):
            break
        lengths.append(length)
        position += 16 + length
    return lengths, position, False


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    """Frames of which many repeat in some rhythm, with slips in between, and perhaps a wrong byte or a missing end."""
    lengths: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        pattern = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
        lengths += pattern * draw(st.integers(0, 900))
        lengths += draw(st.lists(st.integers(0, 30), max_size=3))
    known = {length: frame(bytes(length)) for length in set(lengths)}
    buffer = bytearray(b"".join(known[length] for length in lengths))
    if buffer and draw(st.booleans()):
        buffer[draw(st.integers(0, len(buffer) - 1))] ^= draw(st.integers(1, 255))
    return bytes(buffer[: len(buffer) - draw(st.integers(0, min(len(buffer), 40)))])


@settings(deadline=None)
@given(buffers())
def test_frames_match_slow_walk(buffer: bytes) -> None:
    lengths, end, damaged = walk(buffer)
    found = Framing().frames(memoryview(buffer))
    assert (found.lengths.tolist(), found.end, found.damaged) == (lengths, end, damaged)
    starts = [12 + sum(lengths[:index]) + 16 * index for index in (0, len(lengths) // 2, len(lengths) - 1)]
    if lengths:
        assert found.starts[[0, len(lengths) // 2, -1]].tolist() == starts


def test_incomplete_frame_reports_wanted_bytes() -> None:
    buffer = frame(b"abc") + frame(bytes(100))[:50]
    assert Framing().frames(memoryview(buffer)).wanted == 116
    assert Framing().frames(memoryview(buffer[:25])).wanted == 0


def test_huge_length_allocates_nothing() -> None:
    length = 1 << 62
    buffer = struct.pack("<QI", length, length_checksum(length)) + bytes(100)
    tracemalloc.start()
    found = Framing().frames(memoryview(buffer))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.end, found.damaged, found.wanted) == (0, False, length + 16)
    assert peak < 1 << 20


def test_begins_with_frame() -> None:
    assert begins_with_frame(frame(b"abc"))
    assert begins_with_frame(b"")
    assert not begins_with_frame(b"name: cartpole\n")
