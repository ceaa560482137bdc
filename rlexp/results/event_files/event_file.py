"""One event file: read in chunks up to where it ends, is cut or is damaged, and on from there when it has grown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rlexp.results.event_files.decoding import PADDING, Decoder
from rlexp.results.event_files.framing import Frames, Framing
from rlexp.results.event_files.points import MOST_TAGS, Batch

CHUNK_BYTES: Final = 4 << 20
"""Enough for numpy to earn its keep; the arrays made of a chunk take about ten times as much."""

LARGEST_RECORD: Final = 256 << 20
"""A record is read as a whole. One beyond this size, some picture, is left out."""


class EventFile:
    """Owns the place up to which a file has been read; whoever summarises or follows it asks for the next batches."""

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
        self._framing, self._decoder = Framing(), Decoder()

    def batches(self, size: int, first_record: int = 0) -> Iterator[Batch]:
        """Yield what lies between here and byte ``size``; ``first_record`` records of the run precede this file's.

        A file that cannot be read or is damaged yields what is good and has :meth:`faults`.
        """
        self._size = size
        if size < self.offset:
            self._broken = f"has become shorter than the {self.offset:,} bytes that were read"
        try:
            with self.path.open("rb") as file:
                while self._broken is None:
                    batch = self._next(file, first_record)
                    if batch is None:
                        return
                    yield batch
        except OSError as error:
            self._broken = f"cannot be read: {error.strerror or error}"

    def faults(self) -> list[str]:
        """Say what is wrong with the file, as far as it has been read."""
        faults = []
        if self._damaged:
            count = "1 record is" if self._damaged == 1 else f"{self._damaged:,} records are"
            faults.append(f"{count} damaged and skipped (the first is record {self._first_damaged})")
        if self._too_large:
            count = "1 record is" if self._too_large == 1 else f"{self._too_large} records are"
            faults.append(f"{count} larger than {LARGEST_RECORD >> 20} MiB and skipped")
        if self._decoder.leaves_tags_out:
            faults.append(f"has more than {MOST_TAGS:,} tags; the others are skipped")
        if self._broken is not None:
            faults.append(self._broken)
        return faults

    def cut(self) -> str | None:
        """Say where the file is cut, None where it ends with a record; while it is being written it may be cut."""
        if self._broken is not None or self.offset >= self._size:
            return None
        return f"ends within a record, after record {self.records}, byte {self.offset}"

    def _next(self, file: BinaryIO, first_record: int) -> Batch | None:
        """Return what the next chunk says; None where no complete record follows."""
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
        batch = self._decoder.decode(buffer, frames, first_record + self.records)
        if batch.damaged and not self._damaged:
            self._first_damaged = batch.damaged[0] - first_record + 1
        self._damaged += len(batch.damaged)
        self.offset += frames.end
        self.records += len(frames.lengths)
        return batch


def _read(file: BinaryIO, offset: int, size: int) -> tuple[bytearray, int]:
    """Return a buffer with ``size`` bytes from ``offset`` on and room behind them, and how many bytes there were."""
    buffer = bytearray(size + PADDING)
    file.seek(offset)
    return buffer, file.readinto(memoryview(buffer)[:size])  # type: ignore[attr-defined]
