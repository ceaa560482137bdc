"""FrameStorage: rows whose large observations consist of frames, each of them stored once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.storage.array import ArrayStorage, LentArrays, check_lengths
from rlexp.replay.storage.frame_pool import FRAMES, NO_FRAME, FrameMemory, FramePool, PlainFrames
from rlexp.sample_batch import (
    FRAME_IDS,
    FRAME_IDS_OF,
    NEW_FRAME_IDS,
    NEW_OBS,
    OBS,
    Array,
    FrameRows,
    SampleBatch,
    has_frames,
    num_frames,
    side_by_side,
)
from rlexp.states import AnyArray, LazyArray, rows_of

LOADED_ROWS = 1024
"""Rows of a state of stacks that are split at a time."""

MakeMemory = Callable[[tuple[int, ...], np.dtype[Any]], FrameMemory]
"""A function that makes an empty memory for frames of a shape and a dtype."""


class FrameStorage:
    """A :class:`~rlexp.replay.storage.Storage` that keeps each frame once.

    Rows with small observations are stored unchanged, in an ArrayStorage. For others, the frames are in a pool, and
    FRAME_IDS and NEW_FRAME_IDS are their places there: 32 bytes for a row with two stacks of 4.
    """

    def __init__(self, capacity: int, make_memory: MakeMemory = PlainFrames) -> None:
        """Hold ``capacity`` rows, with frames in the memory of ``make_memory``; no memory is taken yet."""
        self._make_memory = make_memory
        self._plain = ArrayStorage(capacity)
        self._written: Array = np.zeros(capacity, bool)
        self._next_number = NO_FRAME - 1  # numbers for frames without their own; no sender's are below 0
        self.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows once every slot is used, if later rows need as many frames as present ones; 0 before."""
        held = int(np.count_nonzero(self._written))
        return self._plain.nbytes + (self._pool.nbytes * len(self._written) // held if self._pool and held else 0)

    def write(self, start: int, rows: SampleBatch | FrameRows) -> None:
        if isinstance(rows, SampleBatch) and is_large(rows):
            rows = as_frame_rows(rows, self._next_number)
            self._next_number -= len(rows.numbers)
        if isinstance(rows, FrameRows):
            self._write_frames(start, rows)
        else:
            self._plain.write(start, rows)
        self._written[start : start + len(rows)] = True

    def read(self, slots: Array) -> SampleBatch:
        """Return copies of the rows in ``slots [B]``, which the caller may keep.

        The memory of large arrays is reused after the last array that shares it is gone. Stacks ``[B, H, W, K]`` are
        laid out frame by frame.
        """
        rows = self._plain.read(slots)
        if self._pool is None:
            return rows
        return self._with_observations(rows, np.stack([rows[ids] for ids in _ids_in(rows)]))

    def state(self, count: int) -> dict[str, AnyArray]:
        columns: dict[str, AnyArray] = {**self._plain.state(count)}
        if self._pool is None or not count:
            return columns
        frames, loaded = self._pool.state()
        # A state has the ids under the observations' names, as do checkpoints of earlier versions.
        observations = {ids: obs for obs, ids in FRAME_IDS_OF.items()}
        return {
            observations.get(name, name): _renumbered(column, loaded) if name in observations else column
            for name, column in columns.items()
        } | frames

    def load(self, state: Mapping[str, Array], count: int) -> None:
        self.close()
        columns = {name: array for name, array in state.items() if not name.startswith(FRAMES)}
        check_lengths(columns, count)
        if FRAMES in state:
            ids = [columns[obs] for obs in FRAME_IDS_OF if obs in columns]
            if OBS not in columns:
                raise CheckpointError(f"a replay state with frames should have {OBS}")
            try:
                self._make_pool(state[FRAMES]).load(state, ids)
            except CheckpointError:
                self.close()
                raise
            self._plain.load({FRAME_IDS_OF.get(name, name): column for name, column in columns.items()}, count)
            self._written[:count] = True
            return
        for start in range(0, count, LOADED_ROWS):
            self.write(start, SampleBatch(columns).slice(start, min(start + LOADED_ROWS, count)))

    def close(self) -> None:
        self._plain.close()
        self._lent = LentArrays()
        self._pool: FramePool | None = None
        self._form: Array = np.empty(0)
        self._written[:] = False

    def _with_observations(self, rows: SampleBatch, ids: Array) -> SampleBatch:
        """Return ``rows [B]`` with the observations of the frames ``ids [C, B, K]`` of their C columns of ids."""
        assert self._pool is not None
        frames = self._lent.lend((*ids.shape, *self._form.shape[1:]), self._form.dtype)
        self._pool.read(ids.reshape(-1), frames.reshape(-1, *self._form.shape[1:]))
        names = {ids: obs for obs, ids in FRAME_IDS_OF.items()}
        stacks_of = zip(_ids_in(rows), frames, strict=True)
        return rows.exchange({ids: (names[ids], side_by_side(stacks)) for ids, stacks in stacks_of})

    def _write_frames(self, start: int, sent: FrameRows) -> None:
        names = _ids_in(sent.rows)
        indices = np.stack([sent.rows[name] for name in names]).astype(np.int32)
        self._check(sent, dict(zip(names, indices, strict=True)))
        pool = self._pool or self._make_pool(sent.frames)
        overwritten = self._written[start : start + len(sent)].nonzero()[0]
        if len(overwritten):
            rows = self._plain.read(start + overwritten)
            pool.release(np.concatenate([rows[name] for name in names]).reshape(-1))
        counts = np.bincount(indices.reshape(-1), minlength=len(sent.frames))
        ids = pool.add(sent.frames, sent.numbers, counts)[indices]
        self._plain.write(start, sent.rows.with_columns(**dict(zip(names, ids, strict=True))))

    def _check(self, sent: FrameRows, indices: Mapping[str, Array]) -> None:
        """Raise ValueError if the rows' columns or frames differ from the stored ones."""
        self._plain.check(sent.rows.with_columns(**indices))
        given, held = sent.frames, self._form
        if self._pool and (given.dtype != held.dtype or given.shape[1:] != held.shape[1:]):
            raise ValueError(
                f"column {OBS}: frames of {given.dtype}{list(given.shape[1:])}, "
                f"the storage holds {held.dtype}{list(held.shape[1:])}"
            )

    def _make_pool(self, frames: Array) -> FramePool:
        """Return a new pool for frames like ``frames [F, ...]``."""
        self._form = frames[:0].copy()
        self._pool = FramePool(self._make_memory(frames.shape[1:], frames.dtype))
        return self._pool


def _ids_in(rows: SampleBatch) -> list[str]:
    """Return the names of the columns of ids: transitions have two, sequences one."""
    return [ids for ids in FRAME_IDS_OF.values() if ids in rows]


def _renumbered(ids: AnyArray, loaded: Callable[[Array], Array]) -> LazyArray:
    """Return a column of ids in a pool that has loaded the frames."""
    return LazyArray(ids.shape, np.dtype(np.int32), lambda start, stop: loaded(rows_of(ids, start, stop)))


def is_large(batch: SampleBatch) -> bool:
    """Return whether a batch has observations that consist of frames."""
    return OBS in batch and NEW_OBS in batch and has_frames(batch[OBS].shape[1:], batch[OBS].dtype)


def as_frame_rows(batch: SampleBatch, number: int) -> FrameRows:
    """Return the rows of ``batch [B]`` with frames, equal ones once; they are numbered from ``number`` on downwards."""
    apart = frames_of(np.concatenate([batch[OBS], batch[NEW_OBS]]))
    frames = apart.reshape(-1, *apart.shape[2:])
    known: dict[bytes, int] = {}
    first_equal = [known.setdefault(frame.tobytes(), place) for place, frame in enumerate(frames)]
    kept, places = np.unique(np.array(first_equal, np.intp), return_inverse=True)
    ids, new_ids = places.reshape(2, len(batch), apart.shape[1])
    rows = batch.exchange({OBS: (FRAME_IDS, ids), NEW_OBS: (NEW_FRAME_IDS, new_ids)})
    return FrameRows(rows, frames[kept], number - np.arange(len(kept), dtype=np.int64))


def frames_of(observations: Array) -> Array:
    """Return the frames ``[B, K, ..., C]`` of ``observations [B, ..., K C]``."""
    *shape, channels = observations.shape
    count = num_frames(observations.shape[1:])
    return np.moveaxis(observations.reshape(*shape, count, channels // count), -2, 1)
