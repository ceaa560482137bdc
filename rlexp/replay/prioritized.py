"""PrioritizedReplayBuffer: rows with a high priority are drawn more often, and weigh less when they are.

Schaul et al. 2016, "Prioritized Experience Replay", the proportional variant; Horgan et al. 2018,
"Distributed Prioritized Experience Replay", has it filled by many workers, which bring the first
priority of each row themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.ring import RowRing
from rlexp.replay.storage import Storage
from rlexp.replay.sum_tree import SumTree
from rlexp.sample_batch import WEIGHTS, Array, SampleBatch

FIRST_PRIORITY = 1.0
"""The highest priority before any was given: p_1 in algorithm 1 of Schaul et al."""
LARGEST_PRIORITY = 1e100
"""Far above any TD error, and small enough that the sum of all priorities cannot overflow."""


class PrioritizedReplayBuffer:
    """A :class:`~rlexp.replay.buffer.ReplayBuffer` that draws row i with P(i) = p_i^alpha / sum_k p_k^alpha (eq. 1).

    Here, and only here, a priority p is raised to ``alpha``. What makes a priority of a TD error,
    p = abs(delta) + epsilon (section 3.3), is done once too, by the shard.
    """

    def __init__(self, capacity: int, alpha: float, storage: Storage) -> None:
        """Keep the newest ``capacity`` rows in ``storage``; ``alpha`` from 0 (uniform) to 1 (proportional to p)."""
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}, it must be from 0 to 1")
        self.rows = RowRing(capacity, storage)
        self._alpha = alpha
        self._tree = SumTree(capacity)
        self._highest_priority = FIRST_PRIORITY

    @property
    def nbytes(self) -> int:
        """Bytes of the tree, and of the rows once the buffer is full."""
        return self.rows.nbytes + self._tree.nbytes

    def add(self, batch: SampleBatch, priorities: Array | None = None) -> None:
        """Add copies of the rows of ``batch [B]`` with ``priorities [B]``, by default the highest one so far.

        Raises ValueError, with nothing added, for a priority that is negative or not finite, and
        for columns that are not those of the first batch.
        """
        if priorities is None:
            priorities = np.full(len(batch), self._highest_priority)
        priorities = _checked(priorities, len(batch))
        runs = self.rows.write(batch)
        masses = self._masses(priorities)
        for run in runs:
            self._tree.set_run(run.start, masses[run.rows])

    def sample(self, size: int, beta: float, rng: np.random.Generator) -> SampleBatch:
        """Return copies of ``size`` rows, drawn independently with replacement, with KEYS and WEIGHTS ``[size]``.

        The weights are w_i = (N P(i))^-beta / max_j w_j (section 3.4) with the maximum over the whole
        buffer, so that a weight does not depend on what else was drawn. N and the sum in P cancel,
        which leaves (min_j p_j^alpha / p_i^alpha)^beta. Raises ValueError when no priority is above 0.
        """
        slots = self._tree.find(rng.random(size) * self._tree.total)
        weights = (self._tree.min / self._tree.get(slots)) ** beta
        return self.rows.read(slots).with_columns(**{WEIGHTS: weights.astype(np.float32)})

    def update_priorities(self, keys: Array, priorities: Array) -> int:
        """Give the rows ``keys [B]`` new ``priorities [B]``; of a key named twice the last one counts.

        Returns how many were dropped because newer rows overwrote theirs since they were sampled.
        Raises ValueError, with nothing changed, for a priority that is negative or not finite.
        """
        priorities = _checked(priorities, len(keys))
        slots, held = self.rows.locate(keys)
        dropped = len(keys) - int(np.count_nonzero(held))
        if dropped:
            slots, priorities = slots[held], priorities[held]
        self._tree.set(slots, self._masses(priorities))
        return dropped

    def state(self) -> dict[str, Any]:
        """Return copies of the rows and their priorities, from which :meth:`load` makes an equal buffer."""
        return {
            **self.rows.state(),
            "alpha": self._alpha,
            "highest_priority": self._highest_priority,
            "priorities_to_alpha": self._tree.get(np.arange(self.rows.size)),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned; raises CheckpointError for another capacity or alpha."""
        if state["alpha"] != self._alpha:
            raise CheckpointError(f"a replay state made with alpha {state['alpha']} does not fit alpha {self._alpha}")
        self.rows.load(state)
        masses = state["priorities_to_alpha"]
        if len(masses) != self.rows.size:
            raise CheckpointError(f"a replay state holds {len(masses)} priorities for {self.rows.size} rows")
        self._tree = SumTree(self.rows.capacity)
        self._tree.set_run(0, masses)
        self._highest_priority = float(state["highest_priority"])

    def _masses(self, priorities: Array) -> Array:
        """Return p^alpha ``[B]``, and remember the highest p."""
        self._highest_priority = float(priorities.max(initial=self._highest_priority))
        return np.asarray(priorities**self._alpha)


def _checked(priorities: Array, rows: int) -> Array:
    """Return ``priorities [rows]`` as float64; raises ValueError that names the first bad one."""
    priorities = np.asarray(priorities, np.float64)
    if priorities.shape != (rows,):
        raise ValueError(f"priorities of shape {list(priorities.shape)} for {rows} rows")
    if not (priorities.min(initial=0) >= 0 and priorities.max(initial=0) <= LARGEST_PRIORITY):  # so too for NaN
        row = int(((priorities >= 0) & (priorities <= LARGEST_PRIORITY)).argmin())
        raise ValueError(f"the priority of row {row} is {priorities[row]}: it must be finite and not negative")
    return priorities
