"""Gatherers: each keeps the workers of one node busy and stores their rows, so that the driver handles few reports.

``GatheredWorkers`` is the driver's side. It asks gatherers for reports, and gives them weights and shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, Actor, ActorLostError, ArgumentLostError, Lane, Resources, TaskPool
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.fragment import SampleInfo, join_infos, join_observed, join_rows
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import RolloutWorker, WorkerSpec
from rlexp.sample_batch import SentRows

IDLE_S = 0.05
"""Seconds that a gatherer sleeps if no call is in progress, as when all workers are being replaced."""

RenewSpec = Callable[[WorkerSpec, int], WorkerSpec]
"""A function that returns the spec of a worker's replacement, given the first spec and the attempt."""


class RowStore(Protocol):
    """Stores rows, as a replay shard does."""

    def add_batch(self, sent: SentRows) -> int:
        """Add rows."""


@dataclass(frozen=True)
class GathererConfig:
    """How a gatherer joins and stores rows, and how it treats its workers."""

    limits: FleetLimits
    """Limits on failures of its own workers."""
    queue_depth: int
    """Sample calls in flight per worker."""
    max_weight_sync_delay: int
    """Env steps that a worker samples before it gets newer weights."""
    joined_rows: int
    """Least number of rows in a batch that is stored."""
    reported_rows: int
    """Least number of rows in a report, unless ``longest_wait_s`` passes."""
    longest_wait_s: float
    """Seconds after which a report is sent with the rows that there are."""
    store_depth: int
    """Batches on their way into each shard."""


@dataclass(frozen=True)
class GathererSpec:
    """The settings of one gatherer. It can be pickled, as its functions are module functions."""

    index: int
    attempt: int
    """Number of earlier gatherers of this index."""
    seed: int
    """Seed for the choice of shards."""
    workers: tuple[tuple[WorkerSpec, Resources], ...]
    renew: RenewSpec
    make_pool: Callable[[], TaskPool]
    """A function that makes the pool of workers in the gatherer's process."""
    config: GathererConfig


@dataclass(frozen=True)
class Gathered:
    """What a gatherer reports beside the samples, all since its last report except the fragments that it holds."""

    gatherer: int
    """Its index."""
    attempt: int
    """Number of earlier gatherers of this index."""
    num_worker_restarts: int
    num_fragments_held: int
    """Number of fragments that it holds or has asked for now; they are lost if it dies."""
    events: tuple[str, ...]
    observed: dict[int, Moments]
    """The moments that each worker observed; empty without a filter."""


@dataclass(frozen=True, kw_only=True)
class GatheredInfo(SampleInfo):
    """A report about stored rows of several workers."""

    gathered: Gathered
    fed: tuple[int, ...]
    """The shards that got rows."""
    num_fragments_lost: int
    """Fragments since the last report that were lost with their node or that a lost shard did not take."""


class Gatherer:
    """Owns the workers of one node and the rows that wait to be stored. ``GatheredWorkers`` calls it like a worker.

    A plain class, placed as an actor; its workers are actors of its own pool, which end with its process.
    """

    def __init__(self, spec: GathererSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._config = spec.config
        self._clock = clock
        self._pool = spec.make_pool()
        names = [f"worker {worker.index}" for worker, _ in spec.workers]
        fleet = Fleet(self._pool, self._place_worker, len(names), spec.config.limits, clock, names.__getitem__)
        self._source = RemoteWorkers(self._pool, fleet, spec.config.queue_depth, spec.config.max_weight_sync_delay)
        self._rng = np.random.default_rng(spec.seed)
        self._shards: dict[int, Actor[Any]] = {}
        self._store_calls = Lane(self._pool)
        self._stored_fragments: dict[Actor[Any], list[int]] = {}
        self._waiting: list[Sample] = []
        self._infos: list[SampleInfo] = []
        self._fed: set[int] = set()
        self._num_fragments_lost = 0
        self._num_restarts_reported = 0

    def set_shard(self, index: int, shard: Actor[Any]) -> None:
        """Store in ``shard`` from now on; it may replace a lost shard."""
        lost = self._shards.get(index)
        if lost is not None:
            self._forget(lost)
        self._shards[index] = shard
        self._stored_fragments[shard] = []

    def set_weights(self, version: int, weights: Weights) -> None:
        """Give ``weights`` to each worker that is due; they are sent to this node once."""
        self._source.publish(version, weights)

    def set_filter(self, moments: Moments) -> None:
        """Let every worker standardise observations by ``moments``."""
        self._source.set_filter(moments)

    def sample(self, num_steps_sampled: int) -> tuple[int, GatheredInfo]:
        """Store rows until there are enough for a report or its time is over. Return their number and the report.

        ``num_steps_sampled`` is the clock of the workers' schedules. Raises errors that end a fleet of workers.
        """
        ends_s = self._clock() + self._config.longest_wait_s
        while True:
            self._check_stores()
            if self._num_waiting_rows() < self._config.joined_rows:
                self._waiting += self._source.poll(num_steps_sampled)
            self._store(self._config.joined_rows)
            if sum(info.num_rows for info in self._infos) >= self._config.reported_rows:
                break
            remaining_s = ends_s - self._clock()
            if remaining_s <= 0:
                self._store(least_rows=0)
                break
            if not self._source.wait(remaining_s):
                time.sleep(min(remaining_s, IDLE_S))
        info = self._report()
        return info.num_rows, info

    def _place_worker(self, place: int, attempt: int) -> Actor[RolloutWorker]:
        spec, resources = self._spec.workers[place]
        if attempt:
            spec = self._spec.renew(spec, attempt)
        return self._pool.place(f"worker-{spec.index}", resources, RolloutWorker, spec)

    def _num_waiting_rows(self) -> int:
        return sum(sample.info.num_rows for sample in self._waiting)

    def _store(self, least_rows: int) -> None:
        """Send the waiting rows to a shard that has room, if there are at least ``least_rows``."""
        if not self._waiting or self._num_waiting_rows() < least_rows:
            return
        with_room = sorted(index for index, shard in self._shards.items() if self._has_room(shard))
        if not with_room:
            return
        samples, self._waiting = self._waiting, []
        arrived = [(rows, sample.info) for sample in samples if (rows := self._rows_of(sample)) is not None]
        self._infos += [info for _, info in arrived]
        batches = [rows for rows, info in arrived if info.num_rows]
        if batches:
            index = int(self._rng.choice(with_room))
            self._send(index, join_rows(batches), len(batches))

    def _send(self, index: int, rows: SentRows, num_fragments: int) -> None:
        shard = self._shards[index]
        self._stored_fragments[shard].append(num_fragments)
        self._fed.add(index)
        self._store_calls.submit(shard, RowStore.add_batch, self._pool.put(rows))

    def _rows_of(self, sample: Sample) -> SentRows | None:
        """Return a fragment's rows; None if they were lost with their worker's process, which is counted."""
        try:
            return self._pool.get(sample.batch, GET_TIMEOUT_S)
        except (ActorLostError, ArgumentLostError):
            self._num_fragments_lost += 1
            return None

    def _has_room(self, shard: Actor[Any]) -> bool:
        return self._store_calls.in_flight(shard) < self._config.store_depth

    def _check_stores(self) -> None:
        """Count batches that shards did not take. A lost shard gets nothing until it is replaced."""
        for call in self._store_calls.completed():
            sent = self._stored_fragments.get(call.actor)
            if sent is None:
                continue
            num_fragments = sent[0]
            try:
                self._pool.get(call.ref, GET_TIMEOUT_S)
                del sent[0]
            except ArgumentLostError:  # the shard lives
                self._num_fragments_lost += num_fragments
                del sent[0]
            except ActorLostError:
                self._forget(call.actor)

    def _forget(self, shard: Actor[Any]) -> None:
        """Send nothing more to a lost shard, and count the batches that it had not taken."""
        self._num_fragments_lost += sum(self._stored_fragments.pop(shard, []))
        self._store_calls.forget(shard)
        self._shards = {index: each for index, each in self._shards.items() if each is not shard}

    def _report(self) -> GatheredInfo:
        infos, self._infos = self._infos, []
        fed, self._fed = self._fed, set()
        num_lost, self._num_fragments_lost = self._num_fragments_lost, 0
        num_restarts, self._num_restarts_reported = self._num_restarts_reported, self._source.num_worker_restarts
        gathered = Gathered(
            gatherer=self._spec.index,
            attempt=self._spec.attempt,
            num_worker_restarts=self._num_restarts_reported - num_restarts,
            num_fragments_held=len(self._waiting) + self._source.num_in_flight,
            events=tuple(self._source.drain_events()),
            observed=join_observed(infos),
        )
        return GatheredInfo(
            **vars(join_infos(infos)), gathered=gathered, fed=tuple(sorted(fed)), num_fragments_lost=num_lost
        )


QUEUE_DEPTH = 2
"""Calls in flight per gatherer. With 2, its workers stay busy while the driver is busy elsewhere."""


class GatheredWorkers(RemoteWorkers):
    """A SampleSource over a fleet of gatherers, which have the same methods as workers.

    The rows of its samples are already in the replay shards; the infos are of the type ``GatheredInfo``.
    """

    def __init__(self, pool: TaskPool, fleet: Fleet, max_weight_sync_delay: int) -> None:
        """Send a member of ``fleet`` newer weights after it reported ``max_weight_sync_delay`` more env steps.

        Call ``set_shard`` for each shard before the first poll.
        """
        self.num_gatherers = fleet.num_workers
        self._shards: dict[int, Actor[Any]] = {}
        self._latest: dict[int, Gathered] = {}
        self._num_restarts = 0
        self._gathered_events: list[str] = []
        self._num_fragments_lost = 0
        super().__init__(pool, fleet, QUEUE_DEPTH, max_weight_sync_delay)

    @property
    def num_worker_restarts(self) -> int:
        return super().num_worker_restarts + self._num_restarts

    def set_shard(self, index: int, shard: Actor[Any]) -> None:
        """Let all gatherers store in ``shard``, which may replace a lost one."""
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
        """Send a new gatherer the settings of a worker, and the shards to store in."""
        super()._prepare(worker)
        for index in self._shards:
            self._send_shard(worker, index)

    def _replace(self, worker: Actor[Any], error: Exception) -> None:
        """Replace a gatherer that died and count its lost fragments; raise any other error, which ended its fleet."""
        if not isinstance(error, (ActorLostError, ArgumentLostError)):
            raise error
        super()._replace(worker, error)

    def _send_shard(self, gatherer: Actor[Any], index: int) -> None:
        self._updates.submit(gatherer, Gatherer.set_shard, index, self._shards[index])

    def _unpacked(self, sample: Sample) -> Sequence[Sample]:
        """Return a gatherer's sample, if it has one, and a sample without rows for each worker's observed moments."""
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
    """Return a report that has only a worker's observed moments."""
    return replace(join_infos([]), worker_index=worker, weights_version=weights_version, observed=moments)
