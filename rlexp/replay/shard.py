"""Stage 3 of the data path: a replay shard, one part of replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.rows import RowRing, Rows
from rlexp.replay.samplers import PrioritizedSampler, Sampler, WeightNormalization
from rlexp.replay.storage import STORAGES
from rlexp.sample_batch import Array, SampleBatch, SentRows
from rlexp.states import rows_of, split_state


@dataclass(frozen=True)
class ReplayConfig:
    """The settings of one shard; sizes are the shard's own share (see :func:`split_evenly`)."""

    capacity: int
    """Rows kept; the oldest make room for new ones."""
    learning_starts: int
    """Rows that must be added before the first batch."""
    train_batch_size: int
    """Rows of a batch."""
    prioritized: bool
    """Draw by priority instead of uniformly; ``alpha`` and ``eps`` apply only then."""
    alpha: float
    """Strength of priorities: 0 none, 1 full."""
    eps: float
    """Added to every absolute TD error, so that every row can be drawn."""
    storage: str
    """A name in STORAGES, for the storage of rows."""
    normalization: WeightNormalization = "buffer"
    """Normalisation of importance weights."""


@dataclass(frozen=True)
class ShardStats:
    """The content and counters of a shard."""

    size: int
    """Rows held."""
    capacity: int
    """Most rows that it can hold."""
    num_added: int
    """Rows ever added."""
    num_sampled: int
    """Rows ever handed out."""
    num_stale_priorities: int
    """Number of dropped priorities, whose rows newer rows had overwritten."""
    nbytes: int
    """Bytes of memory when it is full; of the rows only after the first add."""


class ReplayShard:
    """A sampler, the check of ``learning_starts``, counters, and a random stream of its own.

    The optimizer calls it: in its own process, or as an actor that the agent placed elsewhere. It copies its arguments
    and returns copies, so neither side can change the other's rows. A batch may be kept: its memory is reused only
    after the last reference to it is gone.
    """

    def __init__(self, config: ReplayConfig, seed: int, rows: Rows | None = None) -> None:
        """Start empty; the same seed and calls give the same batches. ``rows`` are shared with workers."""
        self._config = config
        if rows is None:
            rows = RowRing(config.capacity, STORAGES[config.storage](config.capacity))
        self._sampler = (
            PrioritizedSampler(rows, config.alpha, config.normalization) if config.prioritized else Sampler(rows)
        )
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._num_sampled = 0
        self._num_stale_priorities = 0

    def add_batch(self, sent: SentRows) -> int:
        """Add the rows of a batch ``[B]`` and return B.

        A column TD_ERRORS ``[B]`` gives their first priorities and is not stored; without it they get the highest
        priority so far. Raises ValueError, with nothing added, for a TD error that is not finite and for columns that
        differ from the first batch's.
        """
        batch, td_errors = self._sampler.rows.unpack(sent)
        self._sampler.add(batch, None if td_errors is None else self._priorities(td_errors))
        return len(batch)

    def replay(self, beta: float) -> SampleBatch | None:
        """Return ``train_batch_size`` drawn rows with KEYS and WEIGHTS, or None while too few were added.

        ``beta`` (0 to 1) is how far the weights correct the bias of priorities; agents anneal it.
        """
        if self._sampler.rows.num_added < max(self._config.learning_starts, 1):
            return None
        batch = self._sampler.sample(self._config.train_batch_size, beta, self._rng)
        self._num_sampled += len(batch)
        return batch

    def update_priorities(self, keys: Array, td_errors: Array) -> int:
        """Set priorities of the rows ``keys [B]`` from new ``td_errors [B]``; return how many were too late.

        Raises ValueError, with nothing changed, for a TD error that is not finite. Uniform replay ignores them.
        """
        if not self._config.prioritized:
            return 0
        dropped = self._sampler.update_priorities(keys, self._priorities(td_errors))
        self._num_stale_priorities += dropped
        return dropped

    def stats(self) -> ShardStats:
        """Return its content and counters so far."""
        return ShardStats(
            size=self._sampler.rows.size,
            capacity=self._sampler.rows.capacity,
            num_added=self._sampler.rows.num_added,
            num_sampled=self._num_sampled,
            num_stale_priorities=self._num_stale_priorities,
            nbytes=self._sampler.nbytes,
        )

    def state(self) -> dict[str, Any]:
        """Return its state as a flat dict of arrays, to be read before anything changes, and of values for JSON.

        An array is a view of the shard's own memory or a :class:`~rlexp.states.LazyArray`.
        """
        return {
            **self._sampler.state(),
            "prioritized": self._config.prioritized,
            "rng": self._rng.bit_generator.state,
            "num_sampled": self._num_sampled,
            "num_stale_priorities": self._num_stale_priorities,
        }

    def outline(self) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
        """Return the values of :meth:`state`, and shapes and dtypes of its arrays; :meth:`piece` returns the rest."""
        arrays, values = split_state(self.state())
        return values, {name: (array.shape, array.dtype) for name, array in arrays.items()}

    def piece(self, name: str, start: int, stop: int) -> Array:
        """Return the rows ``start`` to ``stop`` (exclusive) of an array of :meth:`state`."""
        return rows_of(split_state(self.state())[0][name], start, stop)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned: the next batches are the same, bit for bit.

        Raises CheckpointError when the state is of another kind of replay, capacity or alpha.
        """
        if state["prioritized"] != self._config.prioritized:
            raise CheckpointError("a state of prioritized replay does not fit uniform replay, nor the reverse")
        self._sampler.load(state)
        self._rng.bit_generator.state = state["rng"]
        self._num_sampled = int(state["num_sampled"])
        self._num_stale_priorities = int(state["num_stale_priorities"])

    def close(self) -> None:
        """Free the memory of the rows; idempotent."""
        self._sampler.rows.close()

    def _priorities(self, td_errors: Array) -> Array:
        """Return p = abs(delta) + epsilon ``[B]`` (Schaul et al. 2016, section 3.3); the buffer applies alpha."""
        return np.abs(td_errors, dtype=np.float64) + self._config.eps


def split_evenly(total: int, shards: int) -> int:
    """Return each shard's share of ``total`` rows, rounded up, so that together they hold no fewer."""
    return -(-total // shards)
