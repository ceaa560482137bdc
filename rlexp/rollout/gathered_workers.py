"""The rollout workers behind gatherers: keeps each gatherer busy, fed with weights, and knowing where to store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.gatherer import Gathered, GatheredInfo, Gatherer
from rlexp.rollout.joined_rows import join_infos
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.source import Sample
from rlexp.task_pool import Actor, ActorLostError, ArgumentLostError, TaskPool

QUEUE_DEPTH = 2
"""Calls in flight per gatherer: with 2, its workers are kept busy while the driver does something else."""


class GatheredWorkers(RemoteWorkers):
    """A SampleSource over a fleet of gatherers, which have the methods that it calls of workers.

    The rows of its samples are in the replay shards already; the infos are of the type ``GatheredInfo``.
    """

    def __init__(
        self, pool: TaskPool, fleet: Fleet, num_gatherers: int, num_shards: int, max_weight_sync_delay: int
    ) -> None:
        """``fleet`` has ``num_gatherers``. Each gets newer weights after it has reported so many more env steps.

        Call ``set_shard`` for each of ``num_shards`` before the first poll.
        """
        self.num_gatherers = num_gatherers
        self._shards: list[Actor[Any] | None] = [None] * num_shards
        self._latest: dict[int, Gathered] = {}
        self._num_restarts = 0
        self._gathered_events: list[str] = []
        self._num_fragments_lost = 0
        super().__init__(pool, fleet, QUEUE_DEPTH, max_weight_sync_delay)

    @property
    def num_worker_restarts(self) -> int:
        return super().num_worker_restarts + self._num_restarts

    def set_shard(self, index: int, shard: Actor[Any]) -> None:
        """Let all gatherers store in ``shard``, which may replace one that was lost."""
        self._shards[index] = shard
        for gatherer in self._fleet:
            self._send_shard(gatherer, index)

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        samples = super().poll(num_steps_sampled, wanted)
        return [each for sample in samples for each in self._unpacked(sample)]

    def drain_events(self) -> list[str]:
        events, self._gathered_events = self._gathered_events, []
        return super().drain_events() + events

    def _prepare(self, worker: Actor[Any]) -> None:
        """Tell a new gatherer also where to store."""
        super()._prepare(worker)
        for index, shard in enumerate(self._shards):
            if shard is not None:
                self._send_shard(worker, index)

    def _replace(self, worker: Actor[Any], error: Exception) -> None:
        """Replace a gatherer that died, maybe with a report; another error has ended its fleet, and is raised."""
        if not isinstance(error, (ActorLostError, ArgumentLostError)):
            raise error
        super()._replace(worker, error)

    def _send_shard(self, gatherer: Actor[Any], index: int) -> None:
        self._updates.submit(gatherer, Gatherer.set_shard, index, self._shards[index])

    def _unpacked(self, sample: Sample) -> Sequence[Sample]:
        """Return a gatherer's sample, if it has any, and one without rows for what each worker observed."""
        info = sample.info
        assert isinstance(info, GatheredInfo)
        self._count(info)
        observed = [
            Sample(sample.batch, _observation(worker, info.weights_version, moments))
            for worker, moments in info.gathered.observed.items()
        ]
        if not (info.num_env_steps or info.num_rows):
            return observed
        num_lost, self._num_fragments_lost = self._num_fragments_lost, 0
        return [Sample(sample.batch, replace(info, num_fragments_lost=num_lost)), *observed]

    def _count(self, info: GatheredInfo) -> None:
        gathered = info.gathered
        before = self._latest.get(gathered.gatherer)
        if before is not None and before.attempt != gathered.attempt:
            self._num_fragments_lost += before.num_fragments_held
        self._latest[gathered.gatherer] = gathered
        self._num_restarts += gathered.num_worker_restarts
        self._num_fragments_lost += info.num_fragments_lost
        self._gathered_events += gathered.events


def _observation(worker: int, weights_version: int, moments: Moments) -> SampleInfo:
    """Return a report about nothing but what a worker observed."""
    return replace(join_infos([]), worker_index=worker, weights_version=weights_version, observed=moments)
