"""One event file: read in chunks to its end or to where it is cut or damaged, and from there on when it has grown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from rlexp.compare.event_files.framing import CHECKSUM_BYTES, Frames, Framing, crc32c, masked
from rlexp.compare.event_files.messages import LogEvent, WireError, parse_event
from rlexp.compare.event_files.shapes import LONGEST, MOST_TAGS, POINT, Shape, TagNumbers, has_shape, row_bytes
from rlexp.files import open_regular
from rlexp.sample_batch import Array

CHUNK_BYTES: Final = 4 << 20
"""Large enough for NumPy to be efficient; the arrays made of a chunk take about ten times as much."""

LARGEST_RECORD: Final = 256 << 20
"""Largest record that is read. A larger one, such as a picture, is skipped."""

_PADDING = 8
"""Bytes of a buffer after its last frame: rows are whole words."""

_FEW = 4
"""Up to this number, records of one length are read faster one by one than together."""

_MOST_SHAPES = 64
"""Shapes of one length that are looked for in a buffer; each is compared with all records that are left."""


@dataclass(frozen=True)
class Batch:
    """The content of some successive records of a file."""

    points: dict[str, Array]
    """The scalars by tag: ``[N]`` of POINT, in the order in which they were written."""
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of values that are not scalars, by tag and kind."""
    restarts: list[tuple[int, int]] = field(default_factory=list)
    """Record and step of each announcement that a writer continues from there and discards later points."""
    damaged: list[int] = field(default_factory=list)
    """Records that were skipped: their checksum does not match, or they are not messages."""


class EventFile:
    """Owns the position up to which a file has been read; those who summarise or follow it ask for the next batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Bytes read so far: complete records."""
        self.records = 0
        """Records read so far."""
        self._size = 0
        self._broken: str | None = None
        self._too_large = 0
        self._damaged = 0
        self._first_damaged = 0
        self._framing, self._tags = Framing(), TagNumbers()
        self._shapes: dict[int, Shape] = {}
        """The latest shape of each length of records."""

    def batches(self, size: int, first_record: int = 0) -> Iterator[Batch]:
        """Yield what is between here and byte ``size``; ``first_record`` records of the run precede this file's.

        A file that cannot be read or is damaged yields what is good and has :meth:`faults`.
        """
        self._size = size
        if size < self.offset:
            self._broken = f"has become shorter than the {self.offset:,} bytes that were read"
        try:
            with open_regular(self.path, None) as file:
                while self._broken is None:
                    batch = self._next(file, first_record)
                    if batch is None:
                        return
                    yield batch
        except OSError as error:
            self._broken = f"cannot be read: {error.strerror or error}"

    def faults(self) -> list[str]:
        """Return the problems of the file, as far as it has been read."""
        faults = []
        if self._damaged:
            count = "1 record is" if self._damaged == 1 else f"{self._damaged:,} records are"
            faults.append(f"{count} damaged and skipped (the first is record {self._first_damaged})")
        if self._too_large:
            count = "1 record is" if self._too_large == 1 else f"{self._too_large} records are"
            faults.append(f"{count} larger than {LARGEST_RECORD >> 20} MiB and skipped")
        if self._tags.left_out:
            faults.append(f"has more than {MOST_TAGS:,} tags; the others are skipped")
        if self._broken is not None:
            faults.append(self._broken)
        return faults

    def cut(self) -> str | None:
        """Return where the file is cut, None if it ends with a record; while it is being written it may be cut."""
        if self._broken is not None or self.offset >= self._size:
            return None
        return f"ends within a record, after record {self.records}, byte {self.offset}"

    def _next(self, file: BinaryIO, first_record: int) -> Batch | None:
        """Return the content of the next chunk; None if no complete record follows."""
        wanted = CHUNK_BYTES
        while self.offset < self._size:
            buffer, got = _read(file, self.offset, min(wanted, self._size - self.offset))
            frames = self._framing.frames(memoryview(buffer)[:got])
            if len(frames.lengths):
                return self._decoded(buffer, frames, first_record)
            if frames.damaged:
                rest = self._size - self.offset
                self._broken = (
                    f"is damaged after record {self.records}, byte {self.offset}: {rest:,} bytes are not read"
                )
                return None
            if not frames.wanted or frames.wanted > self._size - self.offset:
                return None
            wanted = frames.wanted
            if wanted > LARGEST_RECORD:
                self._too_large += 1
                self.offset += wanted
                self.records += 1
                wanted = CHUNK_BYTES
        return None

    def _decoded(self, buffer: bytearray, frames: Frames, first_record: int) -> Batch:
        batch = _Decoding(buffer, frames, first_record + self.records, self._tags, self._shapes).batch()
        if batch.damaged and not self._damaged:
            self._first_damaged = batch.damaged[0] - first_record + 1
        self._damaged += len(batch.damaged)
        self.offset += frames.end
        self.records += len(frames.lengths)
        return batch


def _read(file: BinaryIO, offset: int, size: int) -> tuple[bytearray, int]:
    """Return a buffer with ``size`` bytes from ``offset`` on and padding, and how many bytes there were."""
    buffer = bytearray(size + _PADDING)
    file.seek(offset)
    return buffer, file.readinto(memoryview(buffer)[:size])  # type: ignore[attr-defined]


class _Decoding:
    """Decodes the records in a buffer, one by one or all records of a shape together."""

    def __init__(
        self, buffer: bytearray, frames: Frames, first_record: int, tags: TagNumbers, shapes: dict[int, Shape]
    ) -> None:
        """Take the frames of ``buffer``, the first of which is record ``first_record`` of its run."""
        self._buffer = buffer
        self._starts, self._lengths = frames.starts, frames.lengths
        self._first_record = first_record
        self._tags, self._shapes = tags, shapes
        self._pieces: list[Array] = []
        self._single: list[tuple[int, int, int, float, float]] = []
        self._others: Counter[tuple[str, str]] = Counter()
        self._restarts: list[tuple[int, int]] = []
        self._damaged: list[int] = []

    def batch(self) -> Batch:
        for length, indices in _by_length(self._lengths):
            if length > LONGEST or len(indices) < _FEW:
                self._read_singly(indices)
            else:
                self._read_together(length, indices)
        if self._single:
            self._pieces.append(np.array(self._single, POINT))
        points = _by_tag(self._pieces, self._tags.names)
        return Batch(points, self._others, sorted(self._restarts), sorted(self._damaged))

    def _read_together(self, length: int, indices: Array) -> None:
        """Read records of one length: in every round those that have the shape of the first."""
        words, shapes = self._rows(length, indices), 0
        while len(indices) and shapes < _MOST_SHAPES:
            shape = self._shape_of(words[0], int(indices[0]))
            if shape is None:
                indices, words = indices[1:], words[1:]
                continue
            fits = shape.fits(words)
            records = indices[fits] + self._first_record
            pieces, damaged = shape.read(words[fits], records)
            self._pieces += pieces
            self._damaged += records[damaged].tolist()
            indices, words = indices[~fits], words[~fits]
            shapes += 1
        self._read_singly(indices)

    def _rows(self, length: int, indices: Array) -> Array:
        """Return records of one length with their checksums, ``[N, W]`` uint64."""
        width = row_bytes(length)
        anywhere = np.ndarray(len(self._buffer) - width + 1, f"V{width}", self._buffer, strides=(1,))
        return anywhere[self._starts[indices]].view("<u8").reshape(len(indices), -1)

    def _shape_of(self, words: Array, index: int) -> Shape | None:
        """Return the shape of a record; None if it has none, and then it has been read."""
        length = int(self._lengths[index])
        known = self._shapes.get(length)
        if known is not None and known.fits(words[None])[0]:
            return known
        event = self._event(index)
        if event is None or not has_shape(event):
            self._add(index, event)
            return None
        self._shapes[length] = Shape(self._data(index), event, self._tags)
        return self._shapes[length]

    def _read_singly(self, indices: Array) -> None:
        for index in indices.tolist():
            self._add(index, self._event(index))

    def _event(self, index: int) -> LogEvent | None:
        """Return the content of a record, None if it is damaged."""
        data = self._data(index)
        end = int(self._starts[index]) + len(data)
        stored = int.from_bytes(self._buffer[end : end + CHECKSUM_BYTES], "little")
        if masked(crc32c(np.frombuffer(data, np.uint8))) != stored:
            return None
        try:
            return parse_event(data)
        except WireError:
            return None

    def _data(self, index: int) -> bytes:
        start = int(self._starts[index])
        return bytes(self._buffer[start : start + int(self._lengths[index])])

    def _add(self, index: int, event: LogEvent | None) -> None:
        """Add the content of a record to the batch."""
        record = self._first_record + index
        if event is None:
            self._damaged.append(record)
            return
        if event.starts_session:
            self._restarts.append((record, event.step))
        for value in event.values:
            tag = self._tags.number(value.tag)
            if tag >= 0 and value.number is None:
                self._others[self._tags.names[tag], value.kind] += 1
            elif value.number is not None:
                self._single.append((tag, record, event.step, event.wall_time, value.number.value))


def _by_length(lengths: Array) -> Iterator[tuple[int, Array]]:
    """Yield every length and the indices ``[N]`` of the records that have it, in order."""
    narrow = np.uint16 if lengths.max(initial=0) < 1 << 16 else np.int64  # NumPy sorts 16 bits in linear time
    order = np.argsort(lengths.astype(narrow), kind="stable")
    present, first = np.unique(lengths[order], return_index=True)
    yield from zip(present.tolist(), np.split(order, first[1:]), strict=True)


def _by_tag(pieces: list[Array], names: list[str]) -> dict[str, Array]:
    """Return the points in ``pieces``, which are in any order, by the name of their tag and in the order written."""
    if not pieces:
        return {}
    points = np.concatenate(pieces)
    order = np.argsort(points["record"], kind="stable")
    narrow = np.int16 if len(names) < 1 << 15 else np.int64  # NumPy sorts 16 bits in linear time
    order = order[np.argsort(points["tag"][order].astype(narrow), kind="stable")]
    points = points[order]
    points = points[np.searchsorted(points["tag"], 0) :]  # points of skipped tags are first
    present, first = np.unique(points["tag"], return_index=True)
    ends = [*first[1:].tolist(), len(points)]
    return {
        names[tag]: points[start:end] for tag, start, end in zip(present.tolist(), first.tolist(), ends, strict=True)
    }
