"""How many fragments Ape-X's driver carries: its own optimizer, source and task pool, with canned workers and shards.

Many workers share a few processes and keep a pace, so that a small machine can start them. LOAD is workers, fragments
a second of each (0: as fast as they are asked), rows of a fragment and kind (atari or small):

    python benchmarks/driver.py 360:0.695:50:atari [LOAD ...] [--gatherers 6] [--seconds 8] [--json]

The bytes are those of this machine's network, so they are shown only with --address, for a driver on a node of its own.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.canned_parts import (
    BATCH_SIZE,
    CannedLearner,
    CannedShard,
    CannedWorkers,
    Load,
)
from benchmarks.comparison import Column, Line, Table, conditions, options
from rlexp.agents.apex.gatherers import renewed
from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.gatherer import GatheredWorkers, Gatherer, GathererConfig, GathererSpec
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.schedules import LinearSchedule

NUM_SHARDS, QUEUE_DEPTH, SYNC_DELAY = 4, 2, 400
WARM_UP_S = 4.0
START_TIMEOUT_S = 120.0
LIMITS = FleetLimits(max_restarts=0, sample_timeout_s=600.0)
NETWORK = Path("/proc/net/dev")

COLUMNS_SHOWN = (
    Column("load", "load", 22),
    Column("gatherers", "gatherers", 9, "d"),
    Column("rows_per_s", "rows/s", 8, ",.0f"),
    Column("reports_per_s", "reports/s", 9, ",.1f"),
    Column("thread", "thread", 6, ".2f"),
    Column("process", "process", 7, ".2f"),
    Column("bytes_in", "B in", 6, ".1f"),
    Column("bytes_out", "B out", 6, ".1f"),
)


class CallOfWorker:
    """A method of one of the workers of a process, as Ray's handles have them."""

    def __init__(self, method: Any, worker: int) -> None:
        self._method, self._worker = method, worker

    def options(self, **options: Any) -> CallOfWorker:
        """Return the method with Ray's options."""
        return CallOfWorker(self._method.options(**options), self._worker)

    def remote(self, *args: Any) -> Any:
        """Call it."""
        return self._method.remote(self._worker, *args)


class WorkerHandle:
    """The handle of one of the workers of a process."""

    def __init__(self, process: Any, worker: int) -> None:
        self.sample = CallOfWorker(process.sample, worker)
        self.set_weights = CallOfWorker(process.set_weights, worker)
        self.set_filter = CallOfWorker(process.set_filter, worker)


class CannedGatherer(Gatherer):
    """A gatherer of canned workers, which are there already."""

    def __init__(self, spec: GathererSpec, workers: Sequence[tuple[Any, int]]) -> None:
        self._canned: list[Actor[Any]] = [
            Actor(f"worker-{index}", WorkerHandle(process, index), is_here=False) for process, index in workers
        ]
        super().__init__(spec)

    def _place_worker(self, place: int, attempt: int) -> Actor[Any]:
        return self._canned[place]


@dataclass(frozen=True)
class Bench:
    """One measurement: its load, the processes of the workers, and how many gatherers are between."""

    load: Load
    processes: Sequence[Any]
    num_gatherers: int
    elsewhere: Resources
    """What gatherers ask for, to be where the workers are."""

    def worker(self, index: int, attempt: int) -> Actor[Any]:
        """Return a worker."""
        return Actor(f"worker-{index}", WorkerHandle(self._process(index), index), is_here=False)

    def gatherer(self, pool: RayTaskPool, index: int, attempt: int) -> Actor[Any]:
        """Place a gatherer for each n-th worker."""
        indices = range(index, self.load.num_workers, self.num_gatherers)
        workers = [(self._process(worker), worker) for worker in indices]
        config = GathererConfig(LIMITS, QUEUE_DEPTH, SYNC_DELAY, 1000, 2000, longest_wait_s=1.0, store_depth=2)
        specs: Any = tuple((CannedSpec(worker), Resources(0, 0)) for worker in indices)
        spec = GathererSpec(index, attempt, index, specs, renewed, RayTaskPool, config)
        return pool.place(f"gatherer-{index}", self.elsewhere, CannedGatherer, spec, workers)

    def source(self, pool: RayTaskPool, shards: Sequence[Actor[Any]]) -> RemoteWorkers:
        """Return the source that the optimizer polls."""
        if not self.num_gatherers:
            return RemoteWorkers(pool, Fleet(pool, self.worker, self.load.num_workers, LIMITS), QUEUE_DEPTH, SYNC_DELAY)
        fleet = Fleet(pool, partial(self.gatherer, pool), self.num_gatherers, LIMITS)
        delay = SYNC_DELAY * max(self.load.num_workers // self.num_gatherers // 4, 1)
        gathered = GatheredWorkers(pool, fleet, delay)
        for index, shard in enumerate(shards):
            gathered.set_shard(index, shard)
        return gathered

    def _process(self, index: int) -> Any:
        return self.processes[index % len(self.processes)]


@dataclass(frozen=True)
class CannedSpec:
    """What a gatherer reads of a worker's spec before it places it."""

    index: int


def bytes_of_network() -> np.ndarray | None:
    """Return the bytes that came in and went out over all cables of this machine; None without any."""
    lines = [line.split(":") for line in NETWORK.read_text(encoding="utf-8").splitlines() if ":" in line]
    counts = [[int(number) for number in numbers.split()] for name, numbers in lines if name.strip() != "lo"]
    return np.array([[each[0], each[8]] for each in counts]).sum(axis=0) if counts else None


def step_for(seconds: float, optimizer: AsyncReplayOptimizer) -> int:
    """Step for ``seconds``; return how many reports came."""
    ends_s, num_reports = time.monotonic() + seconds, 0
    while time.monotonic() < ends_s:
        optimizer.step()
        num_reports += len(optimizer.drain_infos())
    return num_reports


def measure(bench: Bench, seconds: float, updates_per_s: float, shows_bytes: bool) -> Line:
    """Return what the driver did in ``seconds``."""
    pool = RayTaskPool()

    def place_shard(index: int, attempt: int) -> Actor[Any]:
        return pool.place(f"replay-{index}", Resources(0, 0), CannedShard, bench.load.kind)

    shards = ReplayShards(pool, place_shard, NUM_SHARDS)
    optimizer = AsyncReplayOptimizer(
        pool,
        bench.source(pool, tuple(shards)),
        shards,
        LearnerThread(CannedLearner(updates_per_s), 4),
        DataPathConfig(4, 2 * bench.load.num_workers, LinearSchedule(0.4, 0.4, 0), num_gatherers=bench.num_gatherers),
        Pacing(None, BATCH_SIZE),
        np.random.default_rng(0),
    )
    optimizer.start()
    until_s = time.monotonic() + START_TIMEOUT_S
    while not optimizer.counters.num_steps_sampled and time.monotonic() < until_s:
        optimizer.step()
    step_for(WARM_UP_S, optimizer)
    clocks: list[Callable[[], float]] = [time.monotonic, time.thread_time, time.process_time]
    rows, sent, before = optimizer.counters.num_steps_sampled, bytes_of_network(), [clock() for clock in clocks]
    num_reports = step_for(seconds, optimizer)
    wall_s, thread_s, process_s = (clock() - start for clock, start in zip(clocks, before, strict=True))
    rows = optimizer.counters.num_steps_sampled - rows
    now = bytes_of_network()
    per_row = [None, None] if not shows_bytes or sent is None or now is None else ((now - sent) / max(rows, 1)).tolist()
    optimizer.stop()
    pool.stop()
    return {
        "gatherers": bench.num_gatherers,
        "rows_per_s": rows / wall_s,
        "reports_per_s": num_reports / wall_s,
        "thread": thread_s / wall_s,
        "process": process_s / wall_s,
        "bytes_in": per_row[0],
        "bytes_out": per_row[1],
    }


def main() -> None:
    import ray

    parser = options(__doc__)
    parser.add_argument("loads", nargs="+", metavar="LOAD", help="workers:rate:rows:kind")
    parser.add_argument(
        "--gatherers", type=int, default=0, metavar="N", help="0, the default: the driver calls workers"
    )
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S")
    parser.add_argument("--processes", type=int, default=8, metavar="N", help="of all workers together")
    parser.add_argument("--updates", type=float, default=19.0, metavar="N", help="the learner's updates a second")
    parser.add_argument("--address", help="of a Ray cluster; without it one is started here")
    parser.add_argument("--workers-on", metavar="RESOURCE", help="a resource that only the workers' nodes have")
    args = parser.parse_args()
    print(conditions(), file=sys.stderr)
    where: dict[str, Any] = {"address": args.address} if args.address else {"address": "local", "num_cpus": 2}
    ray.init(logging_level=logging.ERROR, log_to_driver=False, **where)
    elsewhere = Resources(0, 0, {args.workers_on: 0.001} if args.workers_on else {})
    table = Table(COLUMNS_SHOWN, args.json)
    for text in args.loads:
        load = Load.read(text)
        options_of_ray: Any = {"num_cpus": 0, "resources": dict(elsewhere.custom), "max_concurrency": 1000}
        remote = ray.remote(**options_of_ray)(CannedWorkers)
        bench = Bench(load, [remote.remote(load) for _ in range(args.processes)], args.gatherers, elsewhere)
        table.add({"load": text, **measure(bench, args.seconds, args.updates, args.address is not None)})
    ray.shutdown()


if __name__ == "__main__":
    main()
