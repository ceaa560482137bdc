"""The updates that a learner has begun and whose results are read later, since a GPU computes beside its thread."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from rlexp.policy import Learner, LearnResult, PendingUpdate, PipelinedLearner
from rlexp.sample_batch import SampleBatch

T = TypeVar("T")
"""Says where a batch came from."""


class LearnedBatch(NamedTuple, Generic[T]):
    """A batch that was learned, and what the update reports."""

    origin: T
    num_rows: int
    result: LearnResult


class _Pending(NamedTuple, Generic[T]):
    origin: T
    num_rows: int
    update: PendingUpdate


class PendingUpdates(Generic[T]):
    """Owns the results that are still to be read, oldest first; a LearnerThread calls it, in its thread.

    With ``max_pending_updates`` n, the result of an update is read once n later ones have begun, or when no batch
    waits. Any other learner does one update after the other, as with n = 0.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._pipelined: PipelinedLearner | None = None
        if isinstance(learner, PipelinedLearner) and learner.max_pending_updates:
            self._pipelined = learner
        self._pending: deque[_Pending[T]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def learn(self, origin: T, batch: SampleBatch) -> list[LearnedBatch[T]]:
        """Begin an update; return the batches whose results are due by now, at most one."""
        if self._pipelined is None:
            return [LearnedBatch(origin, batch.count, self._learner.learn_on_batch(batch))]
        self._pending.append(_Pending(origin, batch.count, self._pipelined.submit(batch)))
        return self.collect(self._pipelined.max_pending_updates)

    def collect(self, left: int = 0) -> list[LearnedBatch[T]]:
        """Wait for the oldest updates until ``left`` are pending; return their batches in order."""
        learned = []
        while len(self._pending) > left:
            origin, num_rows, update = self._pending.popleft()
            learned.append(LearnedBatch(origin, num_rows, update.result()))
        return learned
