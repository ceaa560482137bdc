"""ReplayBuffer and PrioritizedReplayBuffer: the buffers of the replay library, in the memory of one process."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.replay.columns import ColumnForms
from rlexp.replay.held_rows import HeldRows
from rlexp.replay.n_step_fold import Intake, NStepConfig
from rlexp.replay.ring import RowRing
from rlexp.replay.samplers import PrioritizedSampler, Sampler, UniformSampler
from rlexp.replay.storage.array import ArrayStorage
from rlexp.sample_batch import Array, SampleBatch

NO_KEYS = np.empty(0, np.int64)


class ReplayBuffer(HeldRows):
    """The newest transitions, in columns of your own; batches are drawn uniformly."""

    def __init__(
        self,
        capacity: int,
        columns: ColumnForms,
        *,
        n_step: NStepConfig | None = None,
        seed: int | None = None,
    ) -> None:
        """Hold ``capacity`` rows; ``columns`` say what each column of one transition is.

        Args:
            capacity: rows held at most; then each new row overwrites the oldest.
            columns: shape and dtype by name, such as ``{"obs": ((4,), np.float32), "actions": ((), np.int64)}``.
            n_step: store n-step transitions; the columns are then those of a step.
            seed: of the draws; None: another one each time.

        Raises:
            ValueError: what of these cannot be.

        """
        intake = Intake(columns, n_step)
        self._rows = _rows(capacity, intake)
        super().__init__(intake, UniformSampler(self._rows), seed)

    def add(self, **columns: ArrayLike) -> Array:
        """Add one transition, or a batch ``[B]``; return the keys ``[B]`` of the rows stored now (int64).

        Raises ValueError, with nothing added, for rows that are not of the declared columns.
        """
        return _store(self._sampler, self._rows, self._intake.rows(columns), None)

    def on_episode_end(self) -> Array:
        """Say that the episode has ended; return the keys ``[B]`` of n-step transitions that are stored now.

        Without ``n_step`` there is nothing to do.
        """
        return _store(self._sampler, self._rows, self._intake.end_episode(), None)

    def sample(self, batch_size: int) -> dict[str, Array]:
        """Return copies of ``batch_size`` rows ``[B, ...]`` by column, drawn independently with replacement.

        ``keys [B]`` name the rows; ``weights [B]`` are all 1, so that a loss for prioritized replay fits this one.
        Raises ValueError where there is no row.
        """
        return self._draw(batch_size, beta=0.0)


class PrioritizedReplayBuffer(HeldRows):
    """The newest transitions, in columns of your own; batches are drawn by priority.

    Row i is drawn with P(i) = (p_i + eps)^alpha / sum_k (p_k + eps)^alpha (Schaul et al. 2016).
    """

    def __init__(
        self,
        capacity: int,
        columns: ColumnForms,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        n_step: NStepConfig | None = None,
        seed: int | None = None,
    ) -> None:
        """Hold ``capacity`` rows; see :class:`ReplayBuffer` for the other arguments.

        Args:
            capacity: rows held at most.
            columns: shape and dtype of each column.
            alpha: how much priorities matter, 0 (uniform) to 1 (proportional).
            eps: added to every priority, so that a row with priority 0 can still be drawn.
            n_step: store n-step transitions.
            seed: of the draws.

        Raises:
            ValueError: what of these cannot be.

        """
        intake = Intake(columns, n_step)
        self._rows = _rows(capacity, intake)
        self._eps = checked_eps(eps)
        self._num_stale_priorities = 0
        super().__init__(intake, PrioritizedSampler(self._rows, alpha), seed)

    @property
    def num_stale_priorities(self) -> int:
        """Priorities that were dropped, because newer rows had overwritten theirs."""
        return self._num_stale_priorities

    def add(self, *, priorities: ArrayLike | None = None, **columns: ArrayLike) -> Array:
        """Add one transition, or a batch ``[B]``, with ``priorities [B]``; return the keys ``[B]`` of the rows (int64).

        Without priorities, the rows get the highest one so far. Raises ValueError, with nothing added, for rows that
        are not of the declared columns, and for priorities that are negative or not finite.
        """
        refuse_folded_priorities(priorities, self._intake)
        rows = self._intake.rows(columns)
        return _store(self._sampler, self._rows, rows, None if priorities is None else raised(priorities, self._eps))

    def on_episode_end(self) -> Array:
        """Say that the episode has ended; return the keys ``[B]`` of n-step transitions that are stored now.

        Without ``n_step`` there is nothing to do.
        """
        return _store(self._sampler, self._rows, self._intake.end_episode(), None)

    def sample(self, batch_size: int, beta: float = 0.4) -> dict[str, Array]:
        """Return copies of ``batch_size`` rows ``[B, ...]`` by column, drawn by priority with replacement.

        ``keys [B]`` are for :meth:`update_priorities`. ``weights [B]`` (float32, at most 1) correct the loss for rows
        drawn more often than others: not at all where ``beta`` is 0, fully where it is 1. The rows' order means
        nothing. Raises ValueError where there is no row with a priority above 0.
        """
        return self._draw(batch_size, beta)

    def update_priorities(self, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Give the rows ``keys [B]`` new ``priorities [B]``; of a key named twice the last one counts.

        Returns how many were dropped because newer rows have overwritten theirs: no other row ever gets them.
        Raises ValueError, with nothing changed, for a priority that is negative or not finite.
        """
        dropped = self._sampler.update_priorities(checked_keys(keys), raised(priorities, self._eps))
        self._num_stale_priorities += dropped
        return dropped


def raised(priorities: ArrayLike, eps: float) -> Array:
    """Return ``priorities [B]``, or a single one, with ``eps`` added: float64 ``[B]``; ValueError if negative."""
    sums: Array = np.add(np.atleast_1d(priorities), eps, dtype=np.float64)
    if sums.min(initial=np.inf) < eps:
        row = int(sums.argmin())
        raise ValueError(f"the priority of row {row} is {sums.flat[row] - eps}: it must be finite and not negative")
    return sums


def checked_keys(keys: ArrayLike) -> Array:
    """Return ``keys [B]``, or a single one, as an array ``[B]``; ValueError where they are no whole numbers."""
    checked = np.atleast_1d(keys)
    if checked.dtype.kind not in "iu" and checked.size:
        raise ValueError(f"keys are whole numbers, as sample and add return them, not {checked.dtype}")
    return checked


def checked_eps(eps: float) -> float:
    """Return ``eps``; ValueError where no priority can be higher by it."""
    if not 0 <= eps < np.inf:
        raise ValueError(f"eps is {eps}, it must be finite and not negative")
    return eps


def refuse_folded_priorities(priorities: ArrayLike | None, intake: Intake) -> None:
    """Raise ValueError for priorities of steps, where what is stored are n-step transitions."""
    if priorities is not None and intake.folds:
        raise ValueError(
            "priorities of single steps are none of n-step transitions: fold the steps by an NStepFold, and add "
            "what it returns with its priorities to a buffer without n_step"
        )


def _rows(capacity: int, intake: Intake) -> RowRing:
    storage = ArrayStorage(capacity)
    storage.write(0, intake.stored.no_rows())
    return RowRing(capacity, storage)


def _store(sampler: Sampler, ring: RowRing, rows: SampleBatch, priorities: Array | None) -> Array:
    """Add ``rows [B]`` to a sampler of ``ring`` and return their keys ``[B]``."""
    if not len(rows):
        return NO_KEYS
    sampler.add(rows, priorities)
    return np.arange(ring.next_key - len(rows), ring.next_key)
