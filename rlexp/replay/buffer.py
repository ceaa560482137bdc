"""ReplayBuffer: what a shard asks of a buffer, whichever law it draws by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlexp.replay.rows import Rows
from rlexp.sample_batch import Array, SampleBatch, SentRows


class ReplayBuffer(Protocol):
    """The newest rows, from which batches are drawn; a shard owns it."""

    rows: Rows
    """The rows held, and how many were ever added."""

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer once it is full; of the rows only after the first add."""
        ...

    def add(self, batch: SentRows, priorities: Array | None) -> None:
        """Add the rows of an unpacked ``batch [B]`` with ``priorities [B]``, by default the highest one so far."""
        ...

    def sample(self, size: int, beta: float, rng: np.random.Generator) -> SampleBatch:
        """Return copies of ``size`` rows, drawn independently with replacement, with their KEYS and WEIGHTS.

        Their order means nothing: rows may come in that of their memory, which is quicker to read.
        KEYS ``[size]`` int64 are what :meth:`update_priorities` takes; WEIGHTS ``[size]`` float32, in (0, 1],
        correct the loss for rows drawn more often than others, fully where ``beta`` is 1.
        Raises ValueError when there is no row to draw.
        """
        ...

    def update_priorities(self, keys: Array, priorities: Array) -> int:
        """Give the rows ``keys [B]`` new ``priorities [B]``; return how many were dropped with their rows."""
        ...

    def state(self) -> dict[str, Any]:
        """Return arrays, numbers and strings from which :meth:`load` makes an equal buffer.

        Arrays are views of the buffer's own, or stored ones: they are to be read before anything changes.
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned; raises CheckpointError when it does not fit this buffer."""
        ...
