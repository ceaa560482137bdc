"""From the frames in a buffer to what they say: record by record, or all records of a shape at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from rlexp.results.event_files.checksums import crc32c, masked
from rlexp.results.event_files.framing import Frames
from rlexp.results.event_files.messages import Event, parse_event
from rlexp.results.event_files.points import POINT, Batch, TagNumbers, by_tag
from rlexp.results.event_files.shapes import CHECKSUM_BYTES, LONGEST, Shape, has_shape, row_bytes
from rlexp.results.event_files.wire import WireError
from rlexp.sample_batch import Array

PADDING: Final = 8
"""Bytes that a buffer must have behind its last frame: rows are whole words."""

_FEW = 4
"""Records of a length that are read sooner one by one than together."""

_MOST_SHAPES = 64
"""Shapes of one length that are looked for in a buffer; every one is compared with all records that are left."""


class Decoder:
    """Reads the records of one file; remembers its tags, and the latest shape of each length of records."""

    def __init__(self) -> None:
        self._tags = TagNumbers()
        self._shapes: dict[int, Shape] = {}

    @property
    def leaves_tags_out(self) -> bool:
        """Whether there were more tags than are read."""
        return self._tags.left_out

    def decode(self, buffer: bytearray, frames: Frames, first_record: int) -> Batch:
        """Return what the frames say; the first is record ``first_record`` of its run."""
        return _Decoding(buffer, frames, first_record, self._tags, self._shapes).batch()


class _Decoding:
    """Decodes one buffer."""

    def __init__(
        self, buffer: bytearray, frames: Frames, first_record: int, tags: TagNumbers, shapes: dict[int, Shape]
    ) -> None:
        self._buffer = buffer
        self._starts, self._lengths = frames.starts, frames.lengths
        self._first_record = first_record
        self._tags, self._shapes = tags, shapes
        self._pieces: list[Array] = []
        self._loose: list[tuple[int, int, int, float, float]] = []
        self._others: Counter[tuple[str, str]] = Counter()
        self._restarts: list[tuple[int, int]] = []
        self._damaged: list[int] = []

    def batch(self) -> Batch:
        """Read everything."""
        for length, indices in _by_length(self._lengths):
            if length > LONGEST or len(indices) < _FEW:
                self._read_singly(indices)
            else:
                self._read_alike(length, indices)
        if self._loose:
            self._pieces.append(np.array(self._loose, POINT))
        points = by_tag(self._pieces, self._tags.names)
        return Batch(points, self._others, sorted(self._restarts), sorted(self._damaged))

    def _read_alike(self, length: int, indices: Array) -> None:
        """Read records of one length: in every round those that have the shape of the first."""
        words, shapes = self._rows(length, indices), 0
        while len(indices) and shapes < _MOST_SHAPES:
            shape = self._shape_of(words[0], int(indices[0]))
            if shape is None:
                indices, words = indices[1:], words[1:]
                continue
            fits = shape.fits(words)
            self._read_rows(shape, words[fits], indices[fits])
            indices, words = indices[~fits], words[~fits]
            shapes += 1
        self._read_singly(indices)

    def _read_singly(self, indices: Array) -> None:
        for index in indices.tolist():
            self._take(index, self._event(index))

    def _shape_of(self, words: Array, index: int) -> Shape | None:
        """Return the shape of a record; None if it has none, and then it has been read."""
        length = int(self._lengths[index])
        known = self._shapes.get(length)
        if known is not None and known.fits(words[None])[0]:
            return known
        event = self._event(index)
        if event is None or not has_shape(event):
            self._take(index, event)
            return None
        self._shapes[length] = Shape(self._data(index), event, self._tags)
        return self._shapes[length]

    def _read_rows(self, shape: Shape, words: Array, indices: Array) -> None:
        records = indices + self._first_record
        pieces, damaged = shape.read(words, records)
        self._pieces += pieces
        self._damaged += records[damaged].tolist()

    def _rows(self, length: int, indices: Array) -> Array:
        """Return records of one length with their checksums, ``[N, W]`` uint64."""
        width = row_bytes(length)
        anywhere = np.ndarray(len(self._buffer) - width + 1, f"V{width}", self._buffer, strides=(1,))
        return anywhere[self._starts[indices]].view("<u8").reshape(len(indices), -1)

    def _event(self, index: int) -> Event | None:
        """Return what a record says, None where it is damaged."""
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

    def _take(self, index: int, event: Event | None) -> None:
        """Keep what a record says."""
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
                self._loose.append((tag, record, event.step, event.wall_time, value.number.value))


def _by_length(lengths: Array) -> Iterator[tuple[int, Array]]:
    """Yield every length and the indices ``[N]`` of the records that have it, in order."""
    narrow = np.uint16 if lengths.max(initial=0) < 1 << 16 else np.int64  # numpy sorts 16 bits in linear time
    order = np.argsort(lengths.astype(narrow), kind="stable")
    present, first = np.unique(lengths[order], return_index=True)
    yield from zip(present.tolist(), np.split(order, first[1:]), strict=True)
