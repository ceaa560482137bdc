"""UniformReplayBuffer: every row held is as likely as any other, as in DQN before priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.replay.rows import Rows
from rlexp.sample_batch import WEIGHTS, Array, SampleBatch, SentRows


class UniformReplayBuffer:
    """A :class:`~rlexp.replay.buffer.ReplayBuffer` that ignores priorities."""

    def __init__(self, rows: Rows) -> None:
        """Draw from ``rows``, which it owns from now on."""
        self.rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows once the buffer is full."""
        return self.rows.nbytes

    def add(self, batch: SentRows, priorities: Array | None = None) -> None:
        """Add the rows of ``batch [B]``; ``priorities`` have no meaning here."""
        self.rows.retire(batch)
        self.rows.write(batch)

    def sample(self, size: int, beta: float, rng: np.random.Generator) -> SampleBatch:
        """Return copies of ``size`` rows with KEYS ``[size]`` int64 and WEIGHTS ``[size]`` float32, all 1."""
        if not self.rows.size:
            raise ValueError("an empty buffer has nothing to sample")
        batch = self.rows.read(self.rows.nth(rng.integers(self.rows.size, size=size)))
        return batch.with_columns(**{WEIGHTS: np.ones(size, np.float32)})

    def update_priorities(self, keys: Array, priorities: Array) -> int:
        """Do nothing, and drop nothing: 0."""
        return 0

    def state(self) -> dict[str, Any]:
        """Return the rows, to be read before anything changes, and how many were added."""
        return self.rows.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned; raises CheckpointError when it does not fit this buffer."""
        self.rows.load(state)
