"""The replay buffers that replay_buffers.py compares, each behind the same three calls."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.replay_rows import ADDED
from rlexp.replay import PrioritizedReplayBuffer, ReplayConfig, ReplayShard
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    KEYS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    FrameRows,
    SampleBatch,
)

DRAWN = 512
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6

Columns = dict[str, Array]


class Buffer(Protocol):
    """A prioritized replay buffer."""

    @property
    def nbytes(self) -> int:
        """Bytes of its rows when it is full."""
        ...

    def add(self, rows: Any) -> None:
        """Add copies of a batch, in the form that the buffer was made for, with its TD_ERRORS where it takes them."""
        ...

    def draw(self) -> Any:
        """Draw a batch by priority; return what names its rows."""
        ...

    def update(self, drawn: Any, td_errors: Array) -> None:
        """Give the rows ``drawn`` the priorities of ``td_errors [DRAWN]``."""
        ...


class RlexpBuffer:
    """One shard, as an agent uses it."""

    storage = "frames"

    def __init__(self, capacity: int, rows: SampleBatch | FrameRows) -> None:
        config = ReplayConfig(
            capacity,
            DRAWN,
            DRAWN,
            prioritized=True,
            alpha=ALPHA,
            eps=EPS,
            storage=self.storage,
        )
        self._shard = ReplayShard(config, seed=0)

    @property
    def nbytes(self) -> int:
        return self._shard.stats().nbytes

    def add(self, rows: SampleBatch | FrameRows) -> None:
        self._shard.add_batch(rows)

    def draw(self) -> Array:
        batch = self._shard.replay(BETA)
        assert batch is not None
        return batch[KEYS]

    def update(self, drawn: Array, td_errors: Array) -> None:
        self._shard.update_priorities(drawn, td_errors)


class PackedRlexpBuffer(RlexpBuffer):
    """With ``compress_observations``."""

    storage = "compressed_frames"


class LibraryBuffer:
    """The buffer for training loops of one's own, with columns by name, as cpprb has them."""

    def __init__(self, capacity: int, rows: SampleBatch) -> None:
        forms = {name: (column.shape[1:], column.dtype) for name, column in stored(rows.columns).items()}
        self._buffer = PrioritizedReplayBuffer(capacity, forms, alpha=ALPHA, eps=EPS, seed=0)

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def add(self, rows: SampleBatch) -> None:
        self._buffer.add(**stored(rows.columns), priorities=rows[TD_ERRORS])

    def draw(self) -> Array:
        return self._buffer.sample(DRAWN, beta=BETA)["keys"]

    def update(self, drawn: Array, td_errors: Array) -> None:
        self._buffer.update_priorities(drawn, td_errors)


class CpprbBuffer:
    """Its sum tree is compiled."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        self.nbytes = capacity * bytes_of_a_row(rows)
        cpprb = importlib.import_module("cpprb")
        columns = {name: {"shape": rows[name].shape[1:] or 1, "dtype": rows[name].dtype} for name in stored(rows)}
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, columns, alpha=ALPHA, eps=EPS)

    def add(self, rows: Columns) -> None:
        self._buffer.add(**stored(rows), priorities=rows[TD_ERRORS])

    def draw(self) -> Any:
        return self._buffer.sample(DRAWN, beta=BETA)["indexes"]

    def update(self, drawn: Any, td_errors: Array) -> None:
        self._buffer.update_priorities(drawn, td_errors)


class TorchrlBuffer:
    """Its sum tree is compiled; draws tensors."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        self.nbytes = capacity * bytes_of_a_row(rows)
        self._torch = importlib.import_module("torch")
        data = importlib.import_module("torchrl.data")
        self._tensordict = importlib.import_module("tensordict")
        self._torch.set_num_threads(1)
        storage = data.LazyTensorStorage(capacity)
        self._buffer = data.TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, eps=EPS, storage=storage, priority_key=TD_ERRORS, batch_size=DRAWN
        )

    def add(self, rows: Columns) -> None:
        self._buffer.extend(self._tensordict.TensorDict(rows, batch_size=[len(rows[OBS])]))

    def draw(self) -> Any:
        return self._buffer.sample()["index"]

    def update(self, drawn: Any, td_errors: Array) -> None:
        self._buffer.update_priority(drawn, self._torch.from_numpy(td_errors))


class TianshouBuffer:
    """Its sum tree is compiled by numba; takes one row for each of its ADDED parts a call, so rows may come twice."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        self.nbytes = capacity * bytes_of_a_row(rows)
        self._data = importlib.import_module("tianshou.data")
        self._buffer = self._data.PrioritizedVectorReplayBuffer(capacity, ADDED, alpha=ALPHA, beta=BETA)
        self._going_on = np.zeros(ADDED, bool)

    def add(self, rows: Columns) -> None:
        count = len(rows[OBS])
        part = rows if count == ADDED else {name: column[np.arange(ADDED) % count] for name, column in rows.items()}
        self._buffer.add(
            self._data.Batch(
                obs=part[OBS],
                act=part[ACTIONS],
                rew=part[REWARDS],
                terminated=self._going_on,
                truncated=self._going_on,
                obs_next=part[NEW_OBS],
                discount=part[DISCOUNTS],
            )
        )

    def draw(self) -> Any:
        return self._buffer.sample(DRAWN)[1]

    def update(self, drawn: Any, td_errors: Array) -> None:
        self._buffer.update_weight(drawn, td_errors)


def stored(rows: Columns) -> Columns:
    return {name: column for name, column in rows.items() if name != TD_ERRORS}


def bytes_of_a_row(rows: Columns) -> int:
    """Return the bytes of one of ``rows [B]``."""
    return sum(column[0].nbytes for column in stored(rows).values())


def whole_columns(batch: SampleBatch | FrameRows) -> Columns:
    """Return the columns of a batch with whole observations, as all but rlexp take them."""
    if isinstance(batch, SampleBatch):
        return batch.columns
    return {name: np.ascontiguousarray(column) for name, column in batch.stacks().columns.items()}


OURS: dict[str, Callable[[int, Any], Buffer]] = {
    "rlexp": RlexpBuffer,
    "library": LibraryBuffer,
    "rlexp lz4": PackedRlexpBuffer,
}
PEERS: dict[str, Callable[[int, Any], Buffer]] = {
    "cpprb": CpprbBuffer,
    "torchrl": TorchrlBuffer,
    "tianshou": TianshouBuffer,
}
"""Each makes a Buffer of a capacity for rows like those given; ImportError or RuntimeError where it cannot."""
