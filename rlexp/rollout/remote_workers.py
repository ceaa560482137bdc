"""The rollout workers that a task pool placed elsewhere: keeps each busy and fed with weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.source import Sample
from rlexp.rollout.turns import Turns
from rlexp.rollout.weight_syncs import WeightSyncs
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import GET_TIMEOUT_S, Actor, ArgumentLostError, Completed, Lane, Ref, TaskPool


class RemoteWorkers:
    """A SampleSource over a fleet of workers, each with up to ``queue_depth`` sample calls in flight.

    What a step costs depends on what has completed, not on the number of workers.
    """

    def __init__(
        self,
        pool: TaskPool,
        fleet: Fleet,
        queue_depth: int,
        max_weight_sync_delay: int,
        shared_weights: SharedWeights | None = None,
    ) -> None:
        """Weights go to a worker once it has sampled ``max_weight_sync_delay`` env steps since its last ones.

        With 0, newer weights always go to each worker before its next call. A worker whose first report says that it
        reads ``shared_weights``, which this owns, is sent none from then on.
        """
        self.num_weight_syncs = 0
        self._num_earlier_restarts = 0
        self._pool = pool
        self._fleet = fleet
        self._lane = Lane(pool, num_returns=2)
        self._updates = Lane(pool)
        self._shared_weights = shared_weights
        self._published: tuple[int, Weights] | None = None
        self._sent: Ref[Weights] | None = None
        self._filter: Ref[Moments] | None = None
        self._turns = Turns(queue_depth)
        self._syncs = WeightSyncs(max_weight_sync_delay)
        self._take_new_workers()

    @property
    def num_worker_restarts(self) -> int:
        return self._num_earlier_restarts + self._fleet.num_restarts

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        samples = [sample for call in self._lane.completed() if (sample := self._sample_of(call)) is not None]
        num_steps_sampled += sum(sample.info.num_env_steps for sample in samples)
        self._check_updates()
        for worker in self._fleet.remove_lost_workers(lambda worker: self._turns.in_flight(worker) > 0):
            self._forget(worker)
        self._take_new_workers()
        self._send_weights()
        self._ask(num_steps_sampled, math.inf if wanted is None else wanted - len(samples))
        return samples

    has_waiting = False  # each poll takes all that have come

    @property
    def num_in_flight(self) -> int:
        return self._turns.num_in_flight

    def wait(self, timeout: float) -> bool:
        return self._pool.wait(timeout)

    def weights_wanted(self) -> bool:
        return self._syncs.has_due or (self._shared_weights is not None and self._shared_weights.is_wanted)

    def publish(self, version: int, weights: Weights) -> None:
        if self._shared_weights is not None:
            self._shared_weights.publish(version, weights)
        self._published, self._sent = (version, weights), None
        self._syncs.published()

    def set_filter(self, moments: Moments) -> None:
        self._filter = self._pool.put(moments)
        for worker in self._fleet:
            self._updates.submit(worker, RolloutWorker.set_filter, self._filter)

    def state(self) -> dict[str, Any]:
        """Return what was counted: workers in other processes begin new episodes."""
        return {"num_weight_syncs": self.num_weight_syncs, "num_worker_restarts": self.num_worker_restarts}

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]
        self._num_earlier_restarts = state.get("num_worker_restarts", 0)  # checkpoints of older versions lack it

    def drain_events(self) -> list[str]:
        return self._fleet.drain_events()

    def stop(self) -> None:
        for worker in self._fleet:
            self._forget(worker)
        self._fleet.stop()
        if self._shared_weights is not None:
            self._shared_weights.close()

    def _sample_of(self, call: Completed[RolloutWorker, SampleInfo]) -> Sample | None:
        """Return what a completed call has brought; None if its worker was lost by it, or before."""
        if call.actor not in self._syncs:
            return None
        self._turns.ended(call.actor)
        try:
            info: SampleInfo = self._pool.get(call.refs[1], GET_TIMEOUT_S)
        except Exception as error:  # an env may raise anything
            self._replace(call.actor, error)
            return None
        self._fleet.delivered(call.actor)
        self._count_sync(call.actor, info)
        return Sample(call.refs[0], info)

    def _count_sync(self, worker: Actor[RolloutWorker], info: SampleInfo) -> None:
        if info.num_weight_reads is None:
            self._syncs.sampled(worker, info.num_env_steps)
            return
        self._syncs.reads(worker)
        self.num_weight_syncs += info.num_weight_reads

    def _check_updates(self) -> None:
        """Replace workers that could not take their weights or filter: they would act with old ones."""
        for call in self._updates.completed():
            if call.actor in self._syncs:
                try:
                    self._pool.get(call.ref, GET_TIMEOUT_S)
                except ArgumentLostError:  # the worker lives, and is sent both again
                    self._send_filter(call.actor)
                    self._syncs.lost(call.actor)
                except Exception as error:
                    self._replace(call.actor, error)

    def _replace(self, worker: Actor[RolloutWorker], error: Exception) -> None:
        self._forget(worker)
        self._fleet.failed(worker, error)

    def _take_new_workers(self) -> None:
        """Ask new workers from now on."""
        for worker in self._fleet.take_new_workers():
            self._turns.add(worker)
            self._syncs.add(worker)
            self._prepare(worker)

    def _prepare(self, worker: Actor[RolloutWorker]) -> None:
        """Send a new worker what it needs before its first call, beside weights."""
        self._send_filter(worker)

    def _send_filter(self, worker: Actor[RolloutWorker]) -> None:
        if self._filter is not None:
            self._updates.submit(worker, RolloutWorker.set_filter, self._filter)

    def _forget(self, worker: Actor[RolloutWorker]) -> None:
        self._lane.forget(worker)
        self._updates.forget(worker)
        self._turns.remove(worker)
        self._syncs.remove(worker)

    def _send_weights(self) -> None:
        """Send the newest weights to each worker that is due, before its next call; they are put once."""
        if self._published is None:
            return
        version, weights = self._published
        for worker in self._syncs.take(version):
            self._sent = self._sent or self._pool.put(weights)
            self._updates.submit(worker, RolloutWorker.set_weights, version, self._sent)
            self.num_weight_syncs += 1

    def _ask(self, num_steps_sampled: int, wanted: float) -> None:
        """Start calls until ``wanted`` are in flight or every queue is full."""
        while self._turns.num_in_flight < wanted:
            worker = self._turns.next()
            if worker is None:
                return
            if self._turns.in_flight(worker) == 1:
                self._fleet.asked(worker)
            self._lane.submit(worker, RolloutWorker.sample, num_steps_sampled)
