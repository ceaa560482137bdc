"""Rollout workers in the optimizer's own thread (``num_workers: 0``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        return [Sample(self._pool.keep(batch), info) for batch, info in samples]

    def weights_wanted(self) -> bool:
        return True

    def publish(self, version: int, weights: Weights) -> None:
        for worker in self._workers:
            worker.set_weights(version, weights)
        self.num_weight_syncs += len(self._workers)

    def set_filter(self, moments: Moments) -> None:
        for worker in self._workers:
            worker.set_filter(moments)

    def state(self) -> dict[str, Any]:
        return {
            "num_weight_syncs": self.num_weight_syncs,
            "workers": [worker.state() for worker in self._workers],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]
        for worker, told in zip(self._workers, state["workers"], strict=True):
            if told is not None:
                worker.load(told)

    def drain_events(self) -> list[str]:
        return []

    def stop(self) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.stop()
