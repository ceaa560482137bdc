"""The replay buffers that replay_buffers.py compares, each behind the same three calls."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlexp.replay import ReplayConfig, ReplayShard
from rlexp.sample_batch import ACTIONS, DISCOUNTS, KEYS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch

ADDED, DRAWN = 50, 512
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6

Columns = dict[str, Array]


class Buffer(Protocol):
    """A prioritized replay buffer."""

    def add(self, rows: Columns) -> None:
        """Add copies of rows ``[B, ...]``, B a multiple of ADDED, with their TD_ERRORS where it takes them."""
        ...

    def draw_and_update(self, td_errors: Array) -> None:
        """Draw a batch by priority, and give its rows the priorities of ``td_errors [DRAWN]``."""
        ...


class RlexpBuffer:
    """One shard, as an agent uses it."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        config = ReplayConfig(
            capacity, DRAWN, DRAWN, prioritized=True, alpha=ALPHA, beta=BETA, eps=EPS, compress_observations=False
        )
        self._shard = ReplayShard(config, seed=0)

    def add(self, rows: Columns) -> None:
        self._shard.add_batch(SampleBatch(rows))

    def draw_and_update(self, td_errors: Array) -> None:
        batch = self._shard.replay()
        assert batch is not None
        self._shard.update_priorities(batch[KEYS], td_errors)


class CpprbBuffer:
    """Its sum tree is compiled."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        cpprb = importlib.import_module("cpprb")
        columns = {name: {"shape": rows[name].shape[1:] or 1, "dtype": rows[name].dtype} for name in stored(rows)}
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, columns, alpha=ALPHA, eps=EPS)

    def add(self, rows: Columns) -> None:
        self._buffer.add(**stored(rows), priorities=rows[TD_ERRORS])

    def draw_and_update(self, td_errors: Array) -> None:
        batch = self._buffer.sample(DRAWN, beta=BETA)
        self._buffer.update_priorities(batch["indexes"], td_errors)


class TorchrlBuffer:
    """Its sum tree is compiled; draws tensors."""

    def __init__(self, capacity: int, rows: Columns) -> None:
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

    def draw_and_update(self, td_errors: Array) -> None:
        batch = self._buffer.sample()
        self._buffer.update_priority(batch["index"], self._torch.from_numpy(td_errors))


class TianshouBuffer:
    """Its sum tree is compiled by numba."""

    def __init__(self, capacity: int, rows: Columns) -> None:
        self._data = importlib.import_module("tianshou.data")
        self._buffer = self._data.PrioritizedVectorReplayBuffer(capacity, ADDED, alpha=ALPHA, beta=BETA)
        self._going_on = np.zeros(ADDED, bool)

    def add(self, rows: Columns) -> None:
        for start in range(0, len(rows[OBS]), ADDED):  # it takes one row for each of its parts a call
            part = {name: column[start : start + ADDED] for name, column in rows.items()}
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

    def draw_and_update(self, td_errors: Array) -> None:
        _, indices = self._buffer.sample(DRAWN)
        self._buffer.update_weight(indices, td_errors)


def stored(rows: Columns) -> Columns:
    return {name: column for name, column in rows.items() if name != TD_ERRORS}


CANDIDATES: dict[str, Callable[[int, Columns], Any]] = {
    "rlexp": RlexpBuffer,
    "cpprb": CpprbBuffer,
    "torchrl": TorchrlBuffer,
    "tianshou": TianshouBuffer,
}
"""Each makes a Buffer of a capacity for rows like those given; ImportError or RuntimeError where it cannot."""
