"""SampleBatch and its column names: the data that rollout, replay, optimizers and learners exchange.

Workers and the replay library compute its rows from streams of steps by ``n_step_returns``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

OBS = "obs"
ACTIONS = "actions"
REWARDS = "rewards"
DISCOUNTS = "discounts"
NEW_OBS = "new_obs"
TD_ERRORS = "td_errors"
IMPORTANCE_WEIGHTS = "weights"
KEYS = "keys"

FRAME_IDS = "frame_ids"
"""The column in place of OBS for large observations: the K frames ``[B, K]`` of each; indices into the sent frames, and
in a storage ids of its pool."""
NEW_FRAME_IDS = "new_frame_ids"
"""The column in place of NEW_OBS."""
FRAME_IDS_OF = {OBS: FRAME_IDS, NEW_OBS: NEW_FRAME_IDS}


def new(column: str) -> str:
    """Return the name of ``column`` for the row's successor: NEW_OBS for OBS."""
    return f"new_{column}"


class SampleBatch:
    """Columns of equal length: row i of every column belongs to the same transition.

    A batch does not own its arrays: they may be views, and read-only (an object store hands out
    read-only memory). Nothing in the package writes into a batch that it did not make.
    """

    __slots__ = ("columns", "count")

    def __init__(self, columns: Mapping[str, Array]) -> None:
        """Take columns ``[B, ...]``; raises ValueError when their lengths differ or none is given."""
        if not columns:
            raise ValueError("a SampleBatch needs at least one column")
        self.columns = dict(columns)
        lengths = set(map(len, self.columns.values()))
        if len(lengths) > 1:
            by_name = {name: len(column) for name, column in self.columns.items()}
            raise ValueError(f"columns of different lengths: {by_name}")
        self.count = lengths.pop()

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {column.dtype}{list(column.shape)}" for name, column in self.columns.items())
        return f"SampleBatch({shapes})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle arrays in their memory order; any other order would copy them element by element."""
        orders = {name: np.argsort(np.negative(column.strides), kind="stable") for name, column in self.columns.items()}
        columns = {name: column.transpose(orders[name]) for name, column in self.columns.items()}
        return _arrived, (columns, {name: np.argsort(order) for name, order in orders.items()})

    def with_columns(self, **columns: Array) -> SampleBatch:
        """Return a batch with the given columns added or replaced."""
        return SampleBatch({**self.columns, **columns})

    def exchange(self, columns: Mapping[str, tuple[str, Array]]) -> SampleBatch:
        """Return a batch in which columns are replaced by columns of other names, at the same places."""
        return SampleBatch(dict(columns.get(name, (name, column)) for name, column in self.columns.items()))

    def slice(self, start: int, stop: int) -> SampleBatch:
        """Return rows ``start`` to ``stop`` (exclusive) as views; the batch itself if these are all its rows."""
        if start == 0 and stop == self.count:
            return self
        return SampleBatch({name: column[start:stop] for name, column in self.columns.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(column.nbytes) for column in self.columns.values())

    @staticmethod
    def concat(batches: Iterable[SampleBatch], num_rows: int | None = None) -> SampleBatch:
        """Join batches with the same columns, in order; a single one is returned unchanged.

        With ``num_rows``, the sum of their rows, an iterator may free each batch when the next one is requested. Then
        not all batches are in memory beside the result.
        """
        if num_rows is None:
            batches = list(batches)
            num_rows = sum(map(len, batches))
        columns: dict[str, Array] = {}
        start = 0
        for batch in batches:
            if batch.count == num_rows:
                return batch
            if not columns:  # empty_like keeps the memory order
                columns = {
                    name: np.empty_like(column, shape=(num_rows, *column.shape[1:]))
                    for name, column in batch.columns.items()
                }
            for name, column in columns.items():
                column[start : start + batch.count] = batch[name]
            start += batch.count
        return SampleBatch(columns)


def _arrived(columns: Mapping[str, Array], orders: Mapping[str, Array]) -> SampleBatch:
    return SampleBatch({name: column.transpose(orders[name]) for name, column in columns.items()})


class Column(NamedTuple):
    """Name, dtype and row shape of a column."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WrittenRows:
    """The place of a batch's rows in memory that a worker shares with replay; sent instead of the rows."""

    shard: int
    """The replay shard of the rows."""
    ring: int
    """The worker's part of that shard's memory."""
    first: int
    """The first row's number in the ring; the others follow it."""
    count: int
    columns: tuple[Column, ...]
    has_td_errors: bool
    """Whether their first TD errors were also written."""

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class FrameRows:
    """Rows whose large observations are sent frame by frame, each frame once.

    An observation ``[..., K C]`` is K frames ``[..., C]`` side by side along its last axis: the images of a stack, or
    with K = 1 a whole observation that cannot be split.
    """

    rows: SampleBatch
    """The columns; FRAME_IDS, and NEW_FRAME_IDS if rows have it, ``[B, K]`` are indices into ``frames``."""
    frames: Array
    """``[F, ..., C]``."""
    numbers: Array
    """The global number of each frame ``[F]`` int64; frames with the same number are equal, in any batch."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and frames."""
        return self.rows.nbytes + int(self.frames.nbytes)

    def slice(self, start: int, stop: int) -> FrameRows:
        """Return rows ``start`` to ``stop`` (exclusive), with all frames."""
        return replace(self, rows=self.rows.slice(start, stop))

    def stacks(self) -> SampleBatch:
        """Return the rows with their observations."""
        return self.rows.exchange(
            {
                ids: (obs, side_by_side(self.frames[self.rows[ids]]))
                for obs, ids in FRAME_IDS_OF.items()
                if ids in self.rows
            }
        )


MIN_FRAMED_BYTES = 1024
"""Least bytes of observations that are split into frames; for smaller ones, the numbers would be nearly as long."""
MAX_STACKED_CHANNELS = 16
"""An image with more channels is one frame."""


def has_frames(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether observations of ``shape`` are large enough to be sent and stored as frames."""
    return math.prod(shape) * dtype.itemsize >= MIN_FRAMED_BYTES


def num_frames(shape: tuple[int, ...]) -> int:
    """Return the number of frames of an observation of ``shape``: each channel of an image may be one of a stack."""
    return shape[2] if len(shape) == 3 and shape[2] <= MAX_STACKED_CHANNELS else 1


def side_by_side(frames: Array) -> Array:
    """Return observations ``[B, ..., K C]`` of their frames ``[B, K, ..., C]``; a view if C or K is 1."""
    beside = np.moveaxis(frames, 1, -2)
    *shape, num_frames, channels = beside.shape
    return beside.reshape(*shape, num_frames * channels)


SentRows = SampleBatch | FrameRows | WrittenRows
"""The rows that a worker sends: the rows, with each frame once if they are large, or the place where it wrote them."""


class Steps(Protocol):
    """``T`` consecutive steps of ``M`` envs, time-major."""

    @property
    def rewards(self) -> Array:
        """Rewards ``[T, M]``, floats."""

    @property
    def terminated(self) -> Array:
        """``[T, M]`` bool: the episode ended here, and no value follows."""

    @property
    def truncated(self) -> Array:
        """``[T, M]`` bool: the episode was truncated here, and later states still have a value."""

    @property
    def valid(self) -> Array:
        """``[T, M]`` bool: an env step, not the reset between two episodes."""


class NStepReturns(NamedTuple):
    """The sums from each of the first ``S`` steps of a stream."""

    returns: Array
    """``[S, M]``, of the rewards' dtype: sum_{k<m} gamma^k r_{t+k}."""
    num_folded: Array
    """``[S, M]`` intp: the number m of summed steps, at most n; 0 if step t is not valid."""
    bootstraps: Array
    """``[S, M]`` bool: whether to bootstrap from the state after them, as the episode did not terminate in them."""


def n_step_returns(steps: Steps, num_starts: int, n_step: int, gamma: float) -> NStepReturns:
    """Sum up the rewards of up to ``n_step`` steps from each of the first ``num_starts``, never beyond an episode.

    Equation 2 of Horgan et al. (2018), with the true number of steps.
    """
    rewards, num_steps = steps.rewards, len(steps.rewards)
    shape = (num_starts, rewards.shape[1])
    returns = np.zeros(shape, rewards.dtype)
    num_folded = np.zeros(shape, np.intp)
    alive = steps.valid[:num_starts].copy()
    bootstraps = np.ones(shape, bool)
    ended = steps.terminated | steps.truncated
    has_ends = np.count_nonzero(ended) > 0
    for k in range(min(n_step, num_steps)):
        # Starts too late for the stream to reach k steps further are no longer alive.
        window, starts = slice(k, k + num_starts), slice(0, num_steps - k)
        still = alive[starts]
        summed, folded = returns[starts], num_folded[starts]
        np.add(summed, rewards[window] * rewards.dtype.type(gamma**k), out=summed, where=still)
        folded += still
        if has_ends:
            bootstraps[starts] &= ~(still & steps.terminated[window])
            still &= ~ended[window]
    return NStepReturns(returns, num_folded, bootstraps)
