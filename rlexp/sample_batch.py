"""SampleBatch and its column names: the one currency that rollout, replay, optimizers and learners trade in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

OBS = "obs"
ACTIONS = "actions"
REWARDS = "rewards"
DISCOUNTS = "discounts"
NEW_OBS = "new_obs"
TD_ERRORS = "td_errors"
WEIGHTS = "weights"
KEYS = "keys"
OUTPUTS = "outputs"
"""What a policy saw in OBS when it acted; its ``postprocess`` uses it up."""
NEW_OUTPUTS = "new_outputs"
"""What it saw in NEW_OBS."""


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

    def with_columns(self, **columns: Array) -> SampleBatch:
        """Return a batch with the given columns added or replaced."""
        return SampleBatch({**self.columns, **columns})

    def slice(self, start: int, stop: int) -> SampleBatch:
        """Return rows ``start`` to ``stop`` (exclusive) as views; the batch itself where these are all its rows."""
        if start == 0 and stop == self.count:
            return self
        return SampleBatch({name: column[start:stop] for name, column in self.columns.items()})

    def take(self, rows: Array) -> SampleBatch:
        """Return copies of the rows whose indices ``rows [B']`` holds."""
        return SampleBatch({name: column[rows] for name, column in self.columns.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(column.nbytes) for column in self.columns.values())

    @staticmethod
    def concat(batches: Iterable[SampleBatch]) -> SampleBatch:
        """Join batches that have the same columns, in order."""
        batches = list(batches)
        if len(batches) == 1:
            return batches[0]
        names = batches[0].columns
        return SampleBatch({name: np.concatenate([batch[name] for batch in batches]) for name in names})


class Column(NamedTuple):
    """What the rows of a column are."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WrittenRows:
    """Where the rows of a batch were written to, in memory that a worker shares with replay: travels in its place."""

    shard: int
    """The replay shard that they are for."""
    ring: int
    """The worker's part of that shard's memory."""
    first: int
    """The first row's number in the ring; the others follow it."""
    count: int
    columns: tuple[Column, ...]
    has_td_errors: bool
    """Whether their first TD errors were written too."""

    def __len__(self) -> int:
        return self.count


SentRows = SampleBatch | WrittenRows
"""What a worker sends: the rows themselves, or where it has written them."""
