"""Rollout workers in the optimizer's own thread (``num_workers: 0``)."""

from __future__ import annotations

from collections.abc import Sequence

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import TaskPool


class LocalWorkers:
    """A SampleSource that samples when it is polled, each time with the newest weights: deterministic."""

    num_worker_restarts = 0

    def __init__(self, pool: TaskPool, workers: Sequence[RolloutWorker]) -> None:
        self.num_weight_syncs = 0
        self._pool = pool
        self._workers = tuple(workers)

    def poll(self, num_steps_sampled: int) -> list[Sample]:
        samples = [worker.sample(num_steps_sampled) for worker in self._workers]
        return [Sample(self._pool.put(batch), info) for batch, info in samples]

    def weights_wanted(self) -> bool:
        return True

    def publish(self, version: int, weights: Weights) -> None:
        for worker in self._workers:
            worker.set_weights(version, weights)
        self.num_weight_syncs += len(self._workers)

    def set_filter(self, moments: Moments) -> None:
        for worker in self._workers:
            worker.set_filter(moments)

    def drain_events(self) -> list[str]:
        return []

    def stop(self) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.stop()
