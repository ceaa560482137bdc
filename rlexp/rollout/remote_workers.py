"""The rollout workers that a task pool placed elsewhere. Each is kept busy and gets weights, in turns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, ArgumentLostError, Completed, Lane, Ref, TaskPool
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet, Worker
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import SamplingWorker


class Turns:
    """Chooses the next worker to ask: the one with the fewest calls in flight, then the one asked longest ago.

    A heap, so that a turn costs the logarithm of the number of workers.
    """

    def __init__(self, queue_depth: int) -> None:
        """Limit each worker to ``queue_depth`` calls in flight."""
        self.num_in_flight = 0
        self._queue_depth = queue_depth
        self._turn = 0
        # For each worker: its calls in flight, the turn in which it was last asked, and a number that breaks ties.
        self._entries: dict[Worker, tuple[int, int, int]] = {}
        self._workers: dict[int, Worker] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._num_added = 0

    def add(self, worker: Worker) -> None:
        """Let a new worker take turns."""
        self._num_added += 1
        self._workers[self._num_added] = worker
        self._set(worker, (0, 0, self._num_added))

    def remove(self, worker: Worker) -> None:
        """Forget a worker, and its calls in flight."""
        entry = self._entries.pop(worker, None)
        if entry is not None:
            self.num_in_flight -= entry[0]
            del self._workers[entry[2]]

    def next(self) -> Worker | None:
        """Return the worker that is asked now, and count its call; None if every queue is full."""
        while self._heap:
            entry = heappop(self._heap)
            worker = self._workers.get(entry[2])
            if worker is None or self._entries[worker] != entry:
                continue  # an outdated entry
            self._turn += 1
            self.num_in_flight += 1
            self._set(worker, (entry[0] + 1, self._turn, entry[2]))
            return worker
        return None

    def ended(self, worker: Worker) -> None:
        """Count a call of ``worker`` as no longer in flight."""
        in_flight, turn, number = self._entries[worker]
        self.num_in_flight -= 1
        self._set(worker, (in_flight - 1, turn, number))

    def in_flight(self, worker: Worker) -> int:
        """Return how many calls of ``worker`` are in flight."""
        return self._entries[worker][0]

    def _set(self, worker: Worker, entry: tuple[int, int, int]) -> None:
        self._entries[worker] = entry
        if entry[0] < self._queue_depth:
            heappush(self._heap, entry)
        if len(self._heap) > 4 * len(self._entries) + 64:  # mostly outdated entries
            self._heap = [each for each in self._entries.values() if each[0] < self._queue_depth]
            heapify(self._heap)


class WeightSyncs:
    """Which workers are due for newer weights: those that have sampled long enough with theirs."""

    def __init__(self, max_delay: int) -> None:
        """Make a worker due once it has sampled ``max_delay`` env steps since its last weights."""
        self._max_delay = max_delay
        self._steps: dict[Worker, int] = {}
        self._version_of: dict[Worker, int] = {}
        self._due: dict[Worker, None] = {}
        # Workers that may be sent the newest weights: checked once for each version, not at each step.
        self._candidates: dict[Worker, None] = {}
        self._reading: set[Worker] = set()

    @property
    def has_due(self) -> bool:
        """Whether a worker has sampled for long enough."""
        return bool(self._due)

    def __contains__(self, worker: object) -> bool:
        return worker in self._steps

    def add(self, worker: Worker) -> None:
        """Count the env steps that a worker without weights samples from now on."""
        self._candidates[worker] = None
        self._restart(worker)

    def remove(self, worker: Worker) -> None:
        """Forget a worker."""
        self._steps.pop(worker, None)
        self._version_of.pop(worker, None)
        self._due.pop(worker, None)
        self._candidates.pop(worker, None)
        self._reading.discard(worker)

    def reads(self, worker: Worker) -> None:
        """Note that ``worker`` reads weights from shared memory when it is due, so none are sent to it."""
        if worker not in self._reading:
            self._reading.add(worker)
            self._due.pop(worker, None)
            self._candidates.pop(worker, None)

    def sampled(self, worker: Worker, num_env_steps: int) -> None:
        """Count env steps that ``worker`` has sampled."""
        self._steps[worker] += num_env_steps
        if self._steps[worker] >= self._max_delay:
            self._due[worker] = self._candidates[worker] = None

    def published(self) -> None:
        """Note that there are newer weights."""
        self._candidates |= self._due

    def lost(self, worker: Worker) -> None:
        """Note that weights did not reach ``worker``, so that they are sent again."""
        self._version_of.pop(worker, None)
        if worker not in self._reading:
            self._candidates[worker] = None

    def take(self, version: int) -> list[Worker]:
        """Return the workers to which weights of ``version`` are sent now, and note that they have them."""
        candidates, self._candidates = self._candidates, {}
        taken = [worker for worker in candidates if self._version_of.get(worker, version - 1) < version]
        for worker in taken:
            self._version_of[worker] = version
            self._restart(worker)
        return taken

    def _restart(self, worker: Worker) -> None:
        self._steps[worker] = 0
        if self._max_delay > 0:
            self._due.pop(worker, None)
        else:
            self._due[worker] = None


class RemoteWorkers:
    """A SampleSource over a fleet of workers, each with up to ``queue_depth`` sample calls in flight.

    The cost of a step depends on the completed calls, not on the number of workers.
    """

    def __init__(
        self,
        pool: TaskPool,
        fleet: Fleet,
        queue_depth: int,
        max_weight_sync_delay: int,
        shared_weights: SharedWeights | None = None,
    ) -> None:
        """Send a worker weights once it has sampled ``max_weight_sync_delay`` env steps since its last ones.

        With 0, each worker always gets newer weights before its next call. This owns ``shared_weights``. A worker whose
        first report says that it reads them is sent none from then on.
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

    has_waiting = False  # each poll takes all completed calls

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
            self._updates.submit(worker, SamplingWorker.set_filter, self._filter)

    def state(self) -> dict[str, Any]:
        """Return the counters only, as workers in other processes begin new episodes."""
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

    def _sample_of(self, call: Completed[SamplingWorker, SampleInfo]) -> Sample | None:
        """Return the sample of a completed call; None if its worker was lost during the call, or before."""
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

    def _count_sync(self, worker: Worker, info: SampleInfo) -> None:
        if info.num_weight_reads is None:
            self._syncs.sampled(worker, info.num_env_steps)
            return
        self._syncs.reads(worker)
        self.num_weight_syncs += info.num_weight_reads

    def _check_updates(self) -> None:
        """Replace workers that could not take their weights or filter, as they would act with old ones."""
        for call in self._updates.completed():
            if call.actor in self._syncs:
                try:
                    self._pool.get(call.ref, GET_TIMEOUT_S)
                except ArgumentLostError:  # The worker lives, and both are sent again.
                    self._send_filter(call.actor)
                    self._syncs.lost(call.actor)
                except Exception as error:
                    self._replace(call.actor, error)

    def _replace(self, worker: Worker, error: Exception) -> None:
        self._forget(worker)
        self._fleet.failed(worker, error)

    def _take_new_workers(self) -> None:
        """Ask new workers for samples from now on."""
        for worker in self._fleet.take_new_workers():
            self._turns.add(worker)
            self._syncs.add(worker)
            self._prepare(worker)

    def _prepare(self, worker: Worker) -> None:
        """Send a new worker what it needs before its first call, except weights."""
        self._send_filter(worker)

    def _send_filter(self, worker: Worker) -> None:
        if self._filter is not None:
            self._updates.submit(worker, SamplingWorker.set_filter, self._filter)

    def _forget(self, worker: Worker) -> None:
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
            self._updates.submit(worker, SamplingWorker.set_weights, version, self._sent)
            self.num_weight_syncs += 1

    def _ask(self, num_steps_sampled: int, wanted: float) -> None:
        """Start calls until ``wanted`` are in flight or every queue is full."""
        while self._turns.num_in_flight < wanted:
            worker = self._turns.next()
            if worker is None:
                return
            if self._turns.in_flight(worker) == 1:
                self._fleet.asked(worker)
            self._lane.submit(worker, SamplingWorker.sample, num_steps_sampled)
