"""SharedWeights: the newest weights in memory that the workers of one machine read, so that none are sent.

::

    optimizer ── publish ─▶ slot 0 │ slot 1 ─▶ read by each worker that is due, before its next fragment
              ◀─ is_wanted ── wanted[worker] ◀─ written by a worker that is due and finds none newer than its own
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlexp.errors import ResourceError
from rlexp.processes.shared_memory import CACHE_LINE, Segment, SegmentHandle, fence
from rlexp.sample_batch import Array, Column

NUM_SLOTS = 2
ALIGNMENT = 64
"""Alignment of each array within a slot, in bytes."""
MOST_READS = 10
"""Most reads in one call. A reader that the writer overtakes in each of them keeps its weights."""


class _Memory:
    """The arrays of a segment, in the order in which every process takes them.

    Publication ``count``, counted from 1, is in slot ``count % 2``. The writer sets ``begun``, fills the slot, and sets
    ``published``. A reader copies the slot of the last publication. Only the publication after the next is written to
    that slot, so the copy is whole if that one has not begun after the copy. Neither side waits. If a process dies at
    any point, earlier publications stay readable.
    """

    def __init__(self, segment: Segment, num_readers: int) -> None:
        self._segment = segment
        words = segment.array((3 + num_readers, CACHE_LINE // 8), np.int64)
        self.begun: Array = words[0, :1]
        self.published: Array = words[1, :1]
        self.versions: Array = words[2, :NUM_SLOTS]
        """The version in each slot."""
        self.wanted: Array = words[3:, 0]
        """The lowest version that each reader waits for ``[num_readers]``; only that reader writes its entry."""
        self._forms_nbytes: Array = words[0, 1:2]
        self.forms: tuple[Column, ...] = ()
        """The forms of the weight arrays, once they are known."""
        self.slots: list[Array] = []
        """The bytes of each slot."""

    def lay_out(self, forms: Sequence[Column]) -> None:
        """Write the form of all weights, before the first are published."""
        text = json.dumps(forms).encode()
        self._segment_bytes(len(text))[:] = np.frombuffer(text, np.uint8)
        self._forms_nbytes[0] = len(text)
        self._take_slots(forms)

    def find_layout(self) -> None:
        """Read what ``lay_out`` wrote, in another process, after the first publication."""
        text = self._segment_bytes(int(self._forms_nbytes[0])).tobytes()
        self._take_slots([Column(name, dtype, tuple(shape)) for name, dtype, shape in json.loads(text)])

    def arrays(self, slot: Array) -> dict[str, Array]:
        """Return the weights as views of the bytes of a slot, or of its copy."""
        starts, _ = _places(self.forms)
        return {
            form.name: slot[start : start + _nbytes(form)].view(form.dtype).reshape(form.shape)
            for form, start in zip(self.forms, starts, strict=True)
        }

    def close(self) -> None:
        """Refuse new readers, and free memory that nobody reads; counters keep their values."""
        self._segment.close()
        self.slots = []
        self.begun, self.published, self.versions = self.begun.copy(), self.published.copy(), self.versions.copy()
        self.wanted, self._forms_nbytes = self.wanted.copy(), self._forms_nbytes.copy()

    def _segment_bytes(self, nbytes: int) -> Array:
        return self._segment.array((nbytes,), np.uint8)

    def _take_slots(self, forms: Sequence[Column]) -> None:
        self.forms = tuple(forms)
        _, nbytes = _places(forms)
        self.slots = [self._segment_bytes(nbytes) for _ in range(NUM_SLOTS)]


class SharedWeights:
    """The writer's end, which exists once; owned by the source that publishes."""

    def __init__(self, num_readers: int, max_delay: int) -> None:
        """Prepare the counters, without memory for weights yet. ResourceError if the system has no memory to share.

        Each of ``num_readers`` is due for newer weights after it sampled ``max_delay`` env steps with its own.
        """
        self._segment = Segment.create()
        self._num_readers = num_readers
        self._max_delay = max_delay
        self._memory = _Memory(self._segment, num_readers)
        self._views: list[dict[str, Array]] = []
        self._num_published = 0
        self._version = -1

    @property
    def is_wanted(self) -> bool:
        """Whether a reader that is due found no weights newer than its own."""
        return int(self._memory.wanted.max(initial=0)) > self._version

    def reader(self, index: int) -> WeightsHandle:
        """Return the handle that reader ``index`` opens in its process; its replacement gets the same one."""
        if not 0 <= index < self._num_readers:
            raise ValueError(f"there are readers 0 to {self._num_readers - 1}, but no {index}")
        return WeightsHandle(self._segment.handle, self._num_readers, index, self._max_delay)

    def publish(self, version: int, weights: Mapping[str, Array]) -> None:
        """Copy ``weights`` to the shared memory. Versions must grow.

        ValueError for weights of another form, and once this is closed.
        """
        forms = tuple(Column(name, array.dtype.str, array.shape) for name, array in weights.items())
        if not self._views:
            self._memory.lay_out(forms)
            self._views = [self._memory.arrays(slot) for slot in self._memory.slots]
        if forms != self._memory.forms:
            raise ValueError("the weights are of another form than those published first")
        count = self._num_published + 1
        slot = count % NUM_SLOTS
        self._memory.begun[0] = count
        fence()
        for name, view in self._views[slot].items():
            view[...] = weights[name]
        self._memory.versions[slot] = version
        fence()
        self._memory.published[0] = count
        self._num_published, self._version = count, version

    def close(self) -> None:
        """Refuse new readers, and free the memory when nobody reads it any more; idempotent."""
        self._views = []
        self._memory.close()


@dataclass(frozen=True)
class WeightsHandle:
    """A reader's way to the memory; travels by value."""

    segment: SegmentHandle
    num_readers: int
    index: int
    max_delay: int

    def open(self) -> WeightsReader | None:
        """Return the reader; None if this process cannot reach the memory, as on another machine.

        Also None in the writer's own process, as sending weights copies nothing there.
        """
        return None if self.segment.pid == os.getpid() else self.open_anywhere()

    def open_anywhere(self) -> WeightsReader | None:
        """Return the reader, in the writer's own process too; None if the memory is out of reach."""
        try:
            segment = self.segment.open()
        except ResourceError:
            return None
        return WeightsReader(_Memory(segment, self.num_readers), self.index, self.max_delay)


class WeightsReader:
    """A worker's end; it knows when the worker is due. Used by one thread."""

    def __init__(self, memory: _Memory, index: int, max_delay: int) -> None:
        """Write only to entry ``index`` of ``wanted``."""
        self.version = -1
        """Version of the worker's weights; -1: none."""
        self._memory = memory
        self._index = index
        self._max_delay = max_delay
        self._num_steps = 0

    def sampled(self, num_env_steps: int) -> None:
        """Count env steps that the worker sampled with its weights."""
        self._num_steps += num_env_steps

    def given(self, version: int) -> None:
        """Note that the worker was sent weights newer than its own."""
        self.version = version
        self._num_steps = 0

    def take(self) -> dict[str, Array] | None:
        """Return a copy of the newest weights if the worker is due and they are newer than its own, else None.

        If it is due but none are newer, the writer's ``is_wanted`` becomes true.
        """
        if self.version >= 0 and self._num_steps < self._max_delay:
            return None
        found = self._newest()
        if found is None:
            self._memory.wanted[self._index] = self.version + 1
            return None
        version, weights = found
        self.given(version)
        return weights

    def _newest(self) -> tuple[int, dict[str, Array]] | None:
        """Return the version and a copy of the newest weights; None if they are not newer than the worker's."""
        memory = self._memory
        for _ in range(MOST_READS):
            count = int(memory.published[0])
            fence()
            if not count:
                return None
            if not memory.slots:
                memory.find_layout()
            slot = count % NUM_SLOTS
            version = int(memory.versions[slot])
            if version <= self.version:
                return None
            copy = memory.slots[slot].copy()
            fence()
            if int(memory.begun[0]) < count + NUM_SLOTS:
                return version, memory.arrays(copy)
        return None


def _nbytes(form: Column) -> int:
    return math.prod(form.shape) * np.dtype(form.dtype).itemsize


def _places(forms: Sequence[Column]) -> tuple[list[int], int]:
    """Return the offset of each array in a slot, and the bytes of a slot."""
    ends = np.cumsum([-(-_nbytes(form) // ALIGNMENT) * ALIGNMENT for form in forms], dtype=np.int64)
    return [0, *ends.tolist()[:-1]], int(ends[-1]) if forms else 0
