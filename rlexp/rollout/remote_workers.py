"""The rollout workers that a task pool placed elsewhere: keeps each busy and fed with weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import GET_TIMEOUT_S, Actor, Completed, Lane, Ref, TaskPool


class RemoteWorkers:
    """A SampleSource over a fleet of workers, each with up to ``queue_depth`` sample calls in flight."""

    def __init__(self, pool: TaskPool, fleet: Fleet, queue_depth: int, max_weight_sync_delay: int) -> None:
        """Weights go to a worker once it has sampled ``max_weight_sync_delay`` env steps since its last ones.

        With 0, newer weights always go to each worker before its next call.
        """
        self.num_weight_syncs = 0
        self._pool = pool
        self._fleet = fleet
        self._queue_depth = queue_depth
        self._max_weight_sync_delay = max_weight_sync_delay
        self._lane = Lane(pool, num_returns=2)
        self._updates = Lane(pool)
        self._published: tuple[int, Ref[Weights]] | None = None
        self._filter: Ref[Moments] | None = None
        self._version_of: dict[Actor[RolloutWorker], int] = {}
        self._steps_since_sync = dict.fromkeys(fleet, 0)
        self._turn = 0
        self._last_turn: dict[Actor[RolloutWorker], int] = {}

    @property
    def num_worker_restarts(self) -> int:
        return self._fleet.num_restarts

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        samples = [sample for call in self._lane.completed() if (sample := self._sample_of(call)) is not None]
        num_steps_sampled += sum(sample.info.num_env_steps for sample in samples)
        self._check_updates()
        for worker in self._fleet.remove_hung_workers(lambda worker: self._lane.in_flight(worker) > 0):
            self._forget(worker)
        for worker in self._fleet.place_replacements():
            self._welcome(worker)
        self._send_weights()
        self._ask(num_steps_sampled, math.inf if wanted is None else wanted - len(samples))
        return samples

    @property
    def num_in_flight(self) -> int:
        return sum(map(self._lane.in_flight, self._fleet))

    def wait(self, timeout: float) -> bool:
        return self._pool.wait(timeout)

    def weights_wanted(self) -> bool:
        return any(steps >= self._max_weight_sync_delay for steps in self._steps_since_sync.values())

    def publish(self, version: int, weights: Weights) -> None:
        self._published = (version, self._pool.put(weights))

    def set_filter(self, moments: Moments) -> None:
        self._filter = self._pool.put(moments)
        for worker in self._fleet:
            self._updates.submit(worker, RolloutWorker.set_filter, self._filter)

    def state(self) -> dict[str, Any]:
        """Return the count of weight syncs: workers in other processes begin new episodes."""
        return {"num_weight_syncs": self.num_weight_syncs}

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]

    def drain_events(self) -> list[str]:
        return self._fleet.drain_events()

    def stop(self) -> None:
        for worker in self._fleet:
            self._forget(worker)
        self._fleet.stop()

    def _sample_of(self, call: Completed[RolloutWorker, SampleInfo]) -> Sample | None:
        """Return what a completed call has brought; None if its worker was lost by it, or before."""
        if call.actor not in self._steps_since_sync:
            return None
        try:
            info: SampleInfo = self._pool.get(call.refs[1], GET_TIMEOUT_S)
        except Exception as error:  # an env may raise anything
            self._replace(call.actor, error)
            return None
        self._fleet.delivered(call.actor)
        self._steps_since_sync[call.actor] += info.num_env_steps
        return Sample(call.refs[0], info)

    def _check_updates(self) -> None:
        """Replace workers that could not take their weights or filter: they would act with old ones."""
        for call in self._updates.completed():
            if call.actor in self._steps_since_sync:
                try:
                    self._pool.get(call.ref, GET_TIMEOUT_S)
                except Exception as error:
                    self._replace(call.actor, error)

    def _replace(self, worker: Actor[RolloutWorker], error: Exception) -> None:
        self._forget(worker)
        self._fleet.failed(worker, error)

    def _welcome(self, worker: Actor[RolloutWorker]) -> None:
        """Count what ``worker`` samples from now on; as a new one it gets its weights with its first call."""
        self._steps_since_sync[worker] = 0
        if self._filter is not None:
            self._updates.submit(worker, RolloutWorker.set_filter, self._filter)

    def _forget(self, worker: Actor[RolloutWorker]) -> None:
        self._lane.forget(worker)
        self._updates.forget(worker)
        self._steps_since_sync.pop(worker, None)
        self._version_of.pop(worker, None)
        self._last_turn.pop(worker, None)

    def _send_weights(self) -> None:
        """Send the newest weights to each worker that is due, before its next call."""
        if self._published is None:
            return
        version, weights = self._published
        for worker in self._fleet:
            if self._is_due(worker, version):
                self._updates.submit(worker, RolloutWorker.set_weights, version, weights)
                self._version_of[worker] = version
                self._steps_since_sync[worker] = 0
                self.num_weight_syncs += 1

    def _ask(self, num_steps_sampled: int, wanted: float) -> None:
        """Start calls until ``wanted`` are in flight or every queue is full."""
        in_flight = {worker: self._lane.in_flight(worker) for worker in self._fleet}
        free = wanted - sum(in_flight.values())
        by_turn = sorted(in_flight, key=lambda worker: self._last_turn.get(worker, 0))
        for depth in range(self._queue_depth):
            for worker in by_turn:
                if in_flight[worker] == depth and free > 0:
                    self._lane.submit(worker, RolloutWorker.sample, num_steps_sampled)
                    in_flight[worker] += 1
                    free -= 1
                    self._turn += 1
                    self._last_turn[worker] = self._turn

    def _is_due(self, worker: Actor[RolloutWorker], version: int) -> bool:
        known = self._version_of.get(worker)
        if known is None:
            return True
        return version > known and self._steps_since_sync[worker] >= self._max_weight_sync_delay
