"""SharedPrioritizedReplayBuffer: the replay library's buffer that explorers in other processes write into.

The learner's process makes the buffer, and a :class:`ReplayWriter` for each explorer, which is sent to the explorer's
process. Nothing else is sent: the buffer finds new rows by the counters in the shared memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from rlexp.errors import CheckpointError
from rlexp.processes.shared_memory import Segment, SegmentHandle
from rlexp.replay.buffers import PrioritizedRows
from rlexp.replay.columns import ColumnForms, NStepConfig, intake_of, refuse_folded_priorities
from rlexp.replay.samplers import bad_priority
from rlexp.replay.shared_rows import FULL_TIMEOUT_S, RingMemory, RingSizes, RingWriter, SharedRows
from rlexp.sample_batch import Array, SampleBatch, WrittenRows

NO_PRIORITY = np.float32(np.nan)
"""Value in the shared memory for a missing first priority."""


@dataclass(frozen=True)
class WriterSpec:
    """The data that an explorer's process needs to write into its ring of a shared buffer; sent by value."""

    segment: SegmentHandle
    sizes: RingSizes
    ring: int
    columns: ColumnForms
    n_step: NStepConfig | None
    full_timeout_s: float


class ReplayWriter:
    """An explorer's end of a shared buffer; :meth:`SharedPrioritizedReplayBuffer.writer` makes it.

    It may be sent to another process, by ``multiprocessing`` with ``spawn`` or ``fork``, and is used by one thread of
    one process at a time. It takes no locks, so a killed writer stops nobody: another one may continue in its place.
    Only rows that it had not written completely are lost.
    """

    def __init__(self, spec: WriterSpec) -> None:
        """Write as ``spec`` says; the memory is opened at the first use."""
        self._spec = spec
        self._intake = intake_of(spec.columns, spec.n_step)
        self._opened: tuple[int, RingWriter] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the memory, which each process opens itself, and without waiting steps."""
        return ReplayWriter, (self._spec,)

    def add(self, *, priorities: ArrayLike | None = None, **columns: ArrayLike) -> int:
        """Write one transition, or a batch ``[B]``, with ``priorities [B]``; return how many rows were written.

        Without priorities, the rows get the highest one that the buffer has had. If the ring is full, this waits until
        the learner's process has taken rows; TimeoutError if it takes none for ``full_timeout_s``. Raises ValueError,
        with nothing written, for rows without the declared columns, and for priorities that are negative or not finite.
        Raises ResourceError if the buffer is on another machine, or is gone.
        """
        refuse_folded_priorities(priorities, self._intake)
        rows = self._intake.rows(columns)
        return self._write(rows, _sent_priorities(priorities, len(rows)))

    def on_episode_end(self) -> int:
        """End the episode; return how many n-step transitions were written now."""
        rows = self._intake.end()
        return self._write(rows, _sent_priorities(None, len(rows)))

    def clear(self) -> None:
        """Forget the steps that wait for others of their episode; written rows stay."""
        self._intake.clear()

    def _write(self, rows: SampleBatch, priorities: Array) -> int:
        if len(rows):
            self._ring_writer().write(rows, priorities)
        return len(rows)

    def _ring_writer(self) -> RingWriter:
        """Return this process's ring writer; a copy made by ``fork`` opens the memory anew."""
        if self._opened is None or self._opened[0] != os.getpid():
            spec = self._spec
            memory = RingMemory(spec.segment.open(), spec.sizes)
            # Columns are laid out in the order of the first rows, which must be equal in the buffer's process.
            memory.storage.write(0, self._intake.stored.no_rows())
            self._opened = os.getpid(), RingWriter(memory, spec.sizes, spec.ring, spec.full_timeout_s)
        return self._opened[1]


class SharedPrioritizedReplayBuffer(PrioritizedRows):
    """A prioritized buffer in memory that explorers in other processes write into, each into its own ring.

    The process that makes it draws from it. Each explorer's share of the rows is equal. The memory has no name in any
    file system: the kernel frees it when the last process that uses it has closed it or ended in any way. Linux only.
    The buffer is a context manager, which closes it.
    """

    def __init__(
        self,
        capacity: int,
        columns: ColumnForms,
        num_writers: int,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        n_step: NStepConfig | None = None,
        headroom: int = 1000,
        full_timeout_s: float = FULL_TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        """Hold ``capacity`` rows of ``num_writers`` explorers.

        Args:
            capacity: most rows held, of all explorers together.
            columns: shape and dtype of each column.
            num_writers: number of explorers, each with a writer of its own.
            alpha: strength of priorities, 0 (uniform) to 1 (proportional).
            eps: added to every priority.
            n_step: store n-step transitions; each writer computes them from the steps of its own env.
            headroom: rows that each explorer may be ahead of this process, in addition to the capacity.
            full_timeout_s: seconds that an explorer waits for this process to take rows, before it fails.
            seed: seed of the draws.

        Raises:
            ValueError: for an invalid argument.
            ResourceError: if this system has no anonymous shared memory.

        """
        if capacity < num_writers:
            raise ValueError(f"capacity is {capacity}, and each of {num_writers} writers needs one row of it at least")
        intake = intake_of(columns, n_step)
        segment, sizes = Segment.create(), RingSizes(capacity, num_writers, headroom)
        self._writer_specs = [
            WriterSpec(segment.handle, sizes, ring, dict(columns), n_step, full_timeout_s)
            for ring in range(num_writers)
        ]
        self._rows = SharedRows(segment, sizes)
        self._sent_columns = intake.stored.sent()
        self._is_closed = False
        super().__init__(intake, self._rows, alpha, eps, seed)

    def writer(self, index: int) -> ReplayWriter:
        """Return the writer of explorer ``index``, from 0 to ``num_writers - 1``, to be sent to its process.

        A process that replaces one that has ended gets the writer of the same index.
        """
        if not 0 <= index < len(self._writer_specs):
            raise ValueError(f"there are writers 0 to {len(self._writer_specs) - 1}, but no {index}")
        return ReplayWriter(self._writer_specs[index])

    def poll(self) -> int:
        """Take in the rows written since the last call, and return their number.

        Every other method does this too, except ``update_priorities``. A learner that does something else for long
        calls it, so that explorers do not have to wait.
        """
        before = self._rows.num_added
        self._take_in()
        return self._rows.num_added - before

    def clear(self) -> None:
        """Forget every row and priority; keys of earlier batches never refer to later rows.

        Steps that wait for others of their episode are in the explorers' processes: each calls ``ReplayWriter.clear``,
        or goes on with its episode.
        """
        super().clear()

    def load(self, path: str | Path) -> None:
        """Load a saved buffer, before any explorer has written; otherwise raises CheckpointError."""
        if self.poll() or self._rows.num_added:
            raise CheckpointError("a saved buffer can be loaded into shared memory only before explorers write there")
        super().load(path)

    def close(self) -> None:
        """Free the memory; idempotent. Later calls that need rows raise ValueError.

        No further explorer can begin. A writing one keeps the memory until it ends, finds its ring full, and raises
        TimeoutError after ``full_timeout_s``.
        """
        self._is_closed = True
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _take_in(self) -> None:
        if self._is_closed:
            raise ValueError("the buffer is closed")
        for written in self._rows.unread(self._sent_columns, has_td_errors=True):
            self._add(written)

    def _add(self, written: WrittenRows) -> None:
        due, sent = self._rows.unpack(written)
        assert sent is not None
        priorities = self._raised(sent)
        not_given = np.isnan(priorities)
        if not_given.any():
            priorities[not_given] = self._sampler.highest_priority
        self._sampler.add(due, priorities)


def _sent_priorities(priorities: ArrayLike | None, count: int) -> Array:
    """Return ``priorities [count]`` in their written form (float32); raises ValueError for an invalid one."""
    if priorities is None:
        return np.full(count, NO_PRIORITY)
    with np.errstate(over="ignore"):
        sent = np.atleast_1d(np.asarray(priorities, np.float32))
    if sent.shape != (count,):
        raise ValueError(f"priorities of shape {list(sent.shape)} for {count} rows")
    good = (sent >= 0) & (sent < np.inf)
    if not good.all():
        row = int(good.argmin())
        raise bad_priority(row, sent[row])
    return sent
