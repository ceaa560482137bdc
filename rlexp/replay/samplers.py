"""Samplers: they own the rows of a shard or of a buffer, and draw them uniformly, or by priority.

Priorities follow Schaul et al. 2016, "Prioritized Experience Replay", proportional variant. In Horgan et al. 2018,
"Distributed Prioritized Experience Replay", many workers fill replay and compute the first priority of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.rows import Rows
from rlexp.replay.sum_tree import SumTree
from rlexp.sample_batch import IMPORTANCE_WEIGHTS, Array, SampleBatch, SentRows
from rlexp.states import LazyArray

FIRST_PRIORITY = 1.0
"""The highest priority before any was given: p_1 in algorithm 1 of Schaul et al."""
WeightNormalization = Literal["buffer", "batch"]
"""The rows whose highest importance weight becomes 1: all rows held, or the batch."""
LARGEST_PRIORITY = 1e100
"""The largest priority: far above any TD error, and so small that the sum of all cannot overflow."""
LOADED_ROWS = 1 << 14
"""Priorities of a state that enter the tree at a time; renewing the sums takes ten times their memory for a moment."""


class Sampler:
    """The newest rows, from which batches are drawn uniformly; a shard or a buffer of the library owns it."""

    rows: Rows
    """The rows held, and the number of rows ever added."""

    def __init__(self, rows: Rows) -> None:
        """Draw from ``rows``, which it now owns."""
        self.rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes of all of it when it is full; of the rows only after the first add."""
        return self.rows.nbytes

    def add(self, batch: SentRows, priorities: Array | None = None) -> None:
        """Add the rows of an unpacked ``batch [B]``; ``priorities [B]`` are ignored."""
        self.rows.retire(batch)
        self.rows.write(batch)

    def sample(self, size: int, beta: float, rng: np.random.Generator) -> SampleBatch:
        """Return copies of ``size`` rows, drawn independently with replacement, with their KEYS and IMPORTANCE_WEIGHTS.

        Their order has no meaning: rows may come in the order of memory, which is faster to read. KEYS ``[size]`` int64
        are for :meth:`update_priorities`; IMPORTANCE_WEIGHTS ``[size]`` float32, in (0, 1], correct the loss for rows
        drawn more often than others, fully for ``beta`` 1; here all are 1. Raises ValueError when there is no row to
        draw.
        """
        if not self.rows.size:
            raise ValueError("an empty buffer has nothing to sample")
        batch = self.rows.read(self.rows.nth(rng.integers(self.rows.size, size=size)))
        return batch.with_columns(**{IMPORTANCE_WEIGHTS: np.ones(size, np.float32)})

    def update_priorities(self, keys: Array, priorities: Array) -> int:
        """Do nothing, and drop nothing: 0."""
        return 0

    def state(self) -> dict[str, Any]:
        """Return arrays, numbers and strings from which :meth:`load` makes an equal sampler.

        Arrays are views of the sampler's own, or stored ones. Read them before anything changes.
        """
        return self.rows.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; raises CheckpointError when it does not fit this sampler."""
        self.rows.load(state)

    def clear(self) -> None:
        """Forget every row and every priority; later rows get new keys."""
        self.rows.clear()


class PrioritizedSampler(Sampler):
    """A :class:`~rlexp.replay.samplers.Sampler` that draws row i with P(i) = p_i^alpha / sum_k p_k^alpha (eq. 1).

    Only here is a priority p raised to ``alpha``. The owner computes priorities from TD errors, p = abs(delta) +
    epsilon (section 3.3).
    """

    def __init__(self, rows: Rows, alpha: float, normalization: WeightNormalization = "buffer") -> None:
        """Draw from ``rows``, which it now owns; ``alpha`` from 0 (uniform) to 1 (proportional to p)."""
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}, it must be from 0 to 1")
        super().__init__(rows)
        self._alpha = alpha
        self._normalization = normalization
        self._tree = SumTree(rows.num_slots)
        self.highest_priority = FIRST_PRIORITY
        """The highest priority so far, which rows without a priority get."""

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._tree.nbytes

    def add(self, batch: SentRows, priorities: Array | None = None) -> None:
        """Add the rows of ``batch [B]`` with ``priorities [B]``, by default the highest one so far.

        Raises ValueError, with nothing added, for a priority that is negative or not finite, and for columns that
        differ from the first batch's.
        """
        if priorities is None:
            priorities = np.full(len(batch), self.highest_priority)
        priorities, highest = _checked(priorities, len(batch))
        for slots in self.rows.retire(batch):
            self._tree.set_run(slots.start, np.zeros(len(slots)))
        runs = self.rows.write(batch)
        masses = self._masses(priorities, highest)
        for run in runs:
            self._tree.set_run(run.start, masses[run.rows])

    def sample(self, size: int, beta: float, rng: np.random.Generator) -> SampleBatch:
        """Return copies of ``size`` rows, drawn with replacement, with KEYS and IMPORTANCE_WEIGHTS ``[size]``.

        They come roughly in the order of their slots, not of the draws.

        The weights are w_i = (N P(i))^-beta / max_j w_j (section 3.4). N and the sum in P cancel, which leaves (min_j
        p_j^alpha / p_i^alpha)^beta. The minimum is over all rows held, so that a weight does not depend on the other
        draws, or over the batch. Raises ValueError if no priority is above 0.
        """
        slots, masses = self._tree.find(rng.random(size) * self._tree.total)
        lowest = self._tree.min if self._normalization == "buffer" else masses.min()
        weights = (lowest / masses) ** beta
        return self.rows.read(slots).with_columns(**{IMPORTANCE_WEIGHTS: weights.astype(np.float32)})

    def update_priorities(self, keys: Array, priorities: Array) -> int:
        """Give the rows ``keys [B]`` new ``priorities [B]``; of a key named twice the last one counts.

        Returns how many were dropped because newer rows overwrote theirs since they were sampled.
        Raises ValueError, with nothing changed, for a priority that is negative or not finite.
        """
        priorities, highest = _checked(priorities, len(keys))
        slots, held = self.rows.locate(keys)
        dropped = len(keys) - int(np.count_nonzero(held))
        if dropped:
            slots, priorities = slots[held], priorities[held]
            highest = float(priorities.max(initial=0))
        self._tree.set(slots, self._masses(priorities, highest))
        return dropped

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "alpha": self._alpha,
            "highest_priority": self.highest_priority,
            "priorities_to_alpha": LazyArray((self.rows.size,), np.dtype(np.float64), self._masses_of),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; raises CheckpointError for another capacity or alpha."""
        if state["alpha"] != self._alpha:
            raise CheckpointError(f"a replay state made with alpha {state['alpha']} does not fit alpha {self._alpha}")
        super().load(state)
        masses = state["priorities_to_alpha"]
        if len(masses) != self.rows.size:
            raise CheckpointError(f"a replay state holds {len(masses)} priorities for {self.rows.size} rows")
        self._tree = SumTree(self.rows.num_slots)
        for start in range(0, len(masses), LOADED_ROWS):
            part = masses[start : start + LOADED_ROWS]
            self._tree.set(self.rows.nth(np.arange(start, start + len(part))), part)
        self.highest_priority = float(state["highest_priority"])

    def clear(self) -> None:
        super().clear()
        self._tree = SumTree(self.rows.num_slots)
        self.highest_priority = FIRST_PRIORITY

    def _masses_of(self, start: int, stop: int) -> Array:
        """Return p^alpha of the rows with ordinals ``start`` to before ``stop``."""
        return self._tree.get(self.rows.nth(np.arange(start, stop)))

    def _masses(self, priorities: Array, highest: float) -> Array:
        """Return p^alpha ``[B]``, and note the ``highest`` p."""
        self.highest_priority = max(highest, self.highest_priority)
        return np.asarray(priorities**self._alpha)


def _checked(priorities: Array, rows: int) -> tuple[Array, float]:
    """Return ``priorities [rows]`` as float64, and the highest; raises ValueError for the first invalid one."""
    priorities = np.asarray(priorities, np.float64)
    if priorities.shape != (rows,):
        raise ValueError(f"priorities of shape {list(priorities.shape)} for {rows} rows")
    highest = float(priorities.max(initial=0))
    if not (highest <= LARGEST_PRIORITY and priorities.min(initial=0) >= 0):  # True for NaN too
        row = int(((priorities >= 0) & (priorities <= LARGEST_PRIORITY)).argmin())
        raise bad_priority(row, priorities[row])
    return priorities, highest


def bad_priority(row: int, priority: np.floating[Any]) -> ValueError:
    """Return the error for the first invalid priority of a batch."""
    return ValueError(f"the priority of row {row} is {priority}: it must be finite and not negative")
