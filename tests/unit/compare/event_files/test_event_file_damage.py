"""Damaged, cut and hostile event files: good records are read, all others are reported as faults.

Checksums compared with TensorBoard's, and frames with a slow walk from frame to frame.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as slow_crc32c
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from rlexp.compare.event_files import event_file, shapes
from rlexp.compare.event_files.event_file import EventFile
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
from rlexp.compare.event_files.gathering import Summary
from tests.lab.event_writing import VERSION, frame, frames, points, read, scalar, write

EVENTS = [scalar(tag, step, step / 7) for step in range(8) for tag in ("loss", "reward", "mean_q")]
RECORDS = frames([VERSION, *EVENTS])
WHOLE = b"".join(RECORDS)


def faults(path: Path) -> list[str]:
    return [fault for file in read(path).files for fault in file.faults()]


def cuts(path: Path) -> list[str | None]:
    return [file.cut() for file in read(path).files]


def all_points(path: Path) -> set[tuple[str, int, str]]:
    return {(tag, step, value) for tag, found in points(path).items() for step, _, value in found}


WRITTEN = {
    (tag, step, repr(float(struct.unpack("f", struct.pack("f", step / 7))[0])))
    for step in range(8)
    for tag in ("loss", "reward", "mean_q")
}


@pytest.mark.parametrize("missing", range(1, sum(map(len, RECORDS[-3:])) + 1))
def test_file_cut_at_any_byte_of_last_records(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(WHOLE[:-missing])
    complete, end = 0, 0
    while complete < len(RECORDS) and end + len(RECORDS[complete]) <= len(WHOLE) - missing:
        end += len(RECORDS[complete])
        complete += 1
    assert sum(map(len, points(path).values())) == complete - 1
    at_end = end == len(WHOLE) - missing
    expected = None if at_end else f"ends within a record, after record {complete}, byte {end}"
    assert (faults(path), cuts(path)) == ([], [expected])


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.sampled_from([64, 1 << 20]))
def test_wrong_byte_loses_points_but_adds_none(at: int, change: int, chunk: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= change
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file, "CHUNK_BYTES", chunk)
        path = Path(folder) / "events.out.tfevents.1"
        path.write_bytes(damaged)
        (contents,) = read(Path(folder)).files
        assert all_points(Path(folder)) < WRITTEN or at < len(RECORDS[0])
        assert len(contents.faults()) + (contents.cut() is not None) == 1


def test_only_record_with_wrong_data_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    content = bytearray(path.read_bytes())
    content[len(RECORDS[0]) + 20] ^= 1
    path.write_bytes(content)
    assert faults(path) == ["1 record is damaged and skipped (the first is record 2)"]
    assert all_points(path) == WRITTEN - {("loss", 0, "0.0")}


def test_wrong_length_ends_reading(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    end = sum(map(len, RECORDS[:5]))
    content = bytearray(path.read_bytes())
    content[end] ^= 1
    path.write_bytes(content)
    rest = len(content) - end
    assert faults(path) == [f"is damaged after record 5, byte {end}: {rest:,} bytes are not read"]
    assert sum(map(len, points(path).values())) == 4


def test_records_that_are_not_messages_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    wrong = [b"\x0f", b"\x2a\x05\x0a", b"\x10" + b"\xff" * 11, b"\x2a\x03\x0a\x09\x00", b"\xff", b"\x09\x00"]
    path.write_bytes(RECORDS[0] + b"".join(map(frame, wrong)) + b"".join(RECORDS[1:]))
    assert faults(path) == ["6 records are damaged and skipped (the first is record 2)"]
    assert all_points(path) == WRITTEN


@given(st.binary(max_size=60))
def test_any_bytes_in_valid_frame_are_read_or_skipped(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.out.tfevents.1"
        path.write_bytes(frame(data) * 6)
        (file,) = read(path).files
        assert file.records == 6


def test_garbage_is_damage(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(random.Random(0).randbytes(5000))
    assert faults(tmp_path) == ["is damaged after record 0, byte 0: 5,000 bytes are not read"]


def test_zeros_after_last_record_from_crash(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert all_points(path) == WRITTEN
    assert faults(path)[0].startswith(f"is damaged after record {len(RECORDS)}, byte {len(WHOLE)}")


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.touch()
    assert (points(path), faults(path), cuts(path)) == ({}, [], [None])


def test_file_that_cannot_be_opened(tmp_path: Path) -> None:
    write(tmp_path, EVENTS[:3])
    (tmp_path / "events.out.tfevents.2").symlink_to(tmp_path / "gone")
    file = EventFile(tmp_path / "events.out.tfevents.2")
    assert list(file.batches(100)) == []
    assert file.faults() == [f"cannot be read: {os.strerror(2)}"]


def test_huge_length_with_valid_checksum_is_cut_without_allocation(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    path.write_bytes(path.read_bytes() + struct.pack("<QI", 1 << 50, length_checksum(1 << 50)) + bytes(50))
    read(path)  # builds the table of checksums
    tracemalloc.start()
    contents = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert contents.files[0].cut() == f"ends within a record, after record {len(RECORDS)}, byte {len(WHOLE)}"
    assert peak < 4 << 20


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_lengths_beyond_file_are_cut_or_damage(tmp_path: Path, length: int) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(struct.pack("<QI", length, length_checksum(length)) + WHOLE)
    assert (points(path), cuts(path)) == ({}, ["ends within a record, after record 0, byte 0"])
    inner = [bytes_field(5, b"x", length), bytes_field(5, bytes_field(1, bytes_field(1, b"x", length)))]
    path.write_bytes(RECORDS[0] + b"".join(map(frame, inner)) + b"".join(RECORDS[1:]))
    assert faults(path) == ["2 records are damaged and skipped (the first is record 2)"]
    assert all_points(path) == WRITTEN


@pytest.mark.parametrize("numbers", [(5,), (5, 1), (1, 8, 1, 5), (1, 9, 1, 5)], ids=str)
def test_deeply_nested_messages_lose_no_points(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    nested = b""
    for level in range(20_000):
        nested = bytes_field(numbers[level % len(numbers)], nested)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(RECORDS[0] + frame(nested) + b"".join(RECORDS[1:]))
    assert all_points(path) == WRITTEN


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def bytes_field(number: int, data: bytes, length: int | None = None) -> bytes:
    """A field of a message as protobuf writes it; ``length`` says that it has another one than it has."""
    return varint(number << 3 | 2) + varint(len(data) if length is None else length) + data


def test_too_large_record_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "LARGEST_RECORD", 1000)
    monkeypatch.setattr(event_file, "CHUNK_BYTES", 100)
    large = [Event(graph_def=bytes(2000)), Event(graph_def=bytes(900))]
    path = write(tmp_path, [*EVENTS[:6], *large, *EVENTS[6:]])
    contents = read(path)
    assert all_points(path) == WRITTEN
    assert sum(contents.others.values()) == 1
    assert contents.files[0].records == len(RECORDS) + 2
    assert contents.files[0].faults() == ["1 record is larger than 0 MiB and skipped"]


def test_number_of_tags_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_TAGS", 7)
    path = write(tmp_path, [scalar(f"tag{index:03}", index, 1.0) for index in range(50)] + EVENTS)
    assert len(points(path)) == 7
    assert "the others are skipped" in faults(path)[0]


def test_memory_of_summary_does_not_grow_with_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path / str(count), [scalar(f"tag{index % 4}", index, 1.0) for index in range(count)])
        tracemalloc.start()
        read(path, Summary)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file, "CHUNK_BYTES", 20_000)
        peak(1000)
        assert peak(20_000) < 1.5 * peak(5_000)


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


def test_begins_with_frame() -> None:
    assert begins_with_frame(frame(b"abc"))
    assert begins_with_frame(b"")
    assert not begins_with_frame(b"name: cartpole\n")
