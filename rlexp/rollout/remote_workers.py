"""The fleet of rollout workers that a task pool placed elsewhere: keeps each busy and fed with weights."""

from __future__ import annotations

from collections.abc import Sequence

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import FragmentInfo, RolloutWorker
from rlexp.sample_batch import SentRows
from rlexp.task_pool import Actor, Lane, Ref, TaskPool

GET_TIMEOUT_S = 60.0
"""Bound of the wait for a result whose call has already completed."""


class RemoteWorkers:
    """A SampleSource over placed workers, each with up to ``queue_depth`` sample calls in flight."""

    def __init__(
        self, pool: TaskPool, workers: Sequence[Actor[RolloutWorker]], queue_depth: int, max_weight_sync_delay: int
    ) -> None:
        """Weights go to a worker once it has sampled ``max_weight_sync_delay`` env steps since its last ones."""
        self.num_weight_syncs = 0
        self._pool = pool
        self._workers = tuple(workers)
        self._queue_depth = queue_depth
        self._max_weight_sync_delay = max_weight_sync_delay
        self._lane = Lane(pool, num_returns=2)
        self._published: tuple[int, Ref[Weights]] | None = None
        self._version_of: dict[Actor[RolloutWorker], int] = {}
        self._steps_since_sync = dict.fromkeys(self._workers, 0)

    def poll(self, num_steps_sampled: int) -> list[Sample]:
        samples = []
        for call in self._lane.completed():
            batch: Ref[SentRows] = call.refs[0]
            info: FragmentInfo = self._pool.get(call.refs[1], GET_TIMEOUT_S)
            samples.append(Sample(batch, info))
            num_steps_sampled += info.num_env_steps
            self._steps_since_sync[call.actor] += info.num_env_steps
        for worker in self._workers:
            self._keep_busy(worker, num_steps_sampled)
        return samples

    def weights_wanted(self) -> bool:
        return any(steps >= self._max_weight_sync_delay for steps in self._steps_since_sync.values())

    def publish(self, version: int, weights: Weights) -> None:
        self._published = (version, self._pool.put(weights))

    def set_filter(self, moments: Moments) -> None:
        shared = self._pool.put(moments)
        for worker in self._workers:
            self._pool.call(worker, RolloutWorker.set_filter, shared)

    def stop(self) -> None:
        self._workers = ()

    def _keep_busy(self, worker: Actor[RolloutWorker], num_steps_sampled: int) -> None:
        if self._published is not None and self._is_due(worker):
            version, weights = self._published
            self._pool.call(worker, RolloutWorker.set_weights, version, weights)
            self._version_of[worker] = version
            self._steps_since_sync[worker] = 0
            self.num_weight_syncs += 1
        for _ in range(self._queue_depth - self._lane.in_flight(worker)):
            self._lane.submit(worker, RolloutWorker.sample, num_steps_sampled)

    def _is_due(self, worker: Actor[RolloutWorker]) -> bool:
        assert self._published is not None
        known = self._version_of.get(worker)
        if known is None:
            return True
        return self._published[0] > known and self._steps_since_sync[worker] >= self._max_weight_sync_delay
