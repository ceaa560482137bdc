"""What a step of Ape-X's driver costs by the number of workers, without Ray: the optimizer, its source and its fleet.

The workers, shards and learner are canned; each step handles one fragment. Ray's own cost is measured by driver.py.

    python benchmarks/step_cost.py [--workers 64 128 360 1000] [--seconds 0.7] [--repeats 3] [--json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.canned_parts import BATCH_SIZE, CannedLearner, CannedShard, Load, canned_info
from benchmarks.comparison import Column, Table, conditions, options
from rlexp.cluster.pool.pool import Actor, Completed, InlineTaskPool, Lane, Ref
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.schedules import LinearSchedule

PACE = 0.695
"""Fragments a second of each worker in the paper."""
COLUMNS_SHOWN = (
    Column("workers", "workers", 7, ",d"),
    Column("us_per_step", "µs/step", 7, ",.0f"),
    Column("core_share", "of a core at the paper's pace", 29, ".2f"),
)


class QueuedPool(InlineTaskPool):
    """Completes the oldest sample call at each wait, and all other calls at once."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._queue: deque[tuple[Lane, Actor[Any]]] = deque()

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        if method.__name__ == "sample":
            self._queue.append((lane, actor))
        elif isinstance(actor.handle, CannedShard):
            super().start(lane, actor, method, args)
        else:
            lane.deliver(Completed(actor, (Ref(None),)))

    def wait(self, timeout: float) -> bool:
        lane, actor = self._queue.popleft()
        lane.deliver(Completed(actor, (Ref(None), Ref(canned_info(self._load, actor.handle)))))
        return True


def make_optimizer(load: Load) -> AsyncReplayOptimizer:
    """Return an optimizer whose learner never learns: its queue stays full."""
    pool, shard = QueuedPool(load), CannedShard(load.kind)
    shard.add_batch = lambda sent: 0  # type: ignore[method-assign]
    fleet = Fleet(pool, lambda index, attempt: Actor(f"worker-{index}", index), load.num_workers, FleetLimits(0, 600.0))
    return AsyncReplayOptimizer(
        pool,
        RemoteWorkers(pool, fleet, queue_depth=2, max_weight_sync_delay=400),
        ReplayShards(pool, lambda index, attempt: Actor(f"replay-{index}", shard), 4),
        LearnerThread(CannedLearner(19.0), 4),
        DataPathConfig(replay_depth=4, store_depth=2 * load.num_workers, beta=LinearSchedule(0.4, 0.4, 0)),
        Pacing(None, BATCH_SIZE),
        np.random.default_rng(0),
    )


def us_per_step(num_workers: int, seconds: float) -> float:
    """Return the CPU time of a step in microseconds, over ``seconds`` of CPU time."""
    optimizer = make_optimizer(Load(num_workers, 0.0, 50, "small"))
    optimizer._publisher.publish()
    optimizer._source.poll(0)
    for _ in range(2 * num_workers):  # each worker is asked, and delivers
        optimizer.step()
    num_steps, started_s = 0, time.thread_time()
    while time.thread_time() - started_s < seconds:
        optimizer.step()
        num_steps += 1
    return 1e6 * (time.thread_time() - started_s) / num_steps


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 128, 360, 1000], metavar="N")
    parser.add_argument("--seconds", type=float, default=0.7, metavar="S", help="CPU time of each measurement")
    args = parser.parse_args()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS_SHOWN, args.json)
    for workers in args.workers:
        cost_us = statistics.median(us_per_step(workers, args.seconds) for _ in range(args.repeats))
        table.add({"workers": workers, "us_per_step": cost_us, "core_share": 1e-6 * cost_us * workers * PACE})


if __name__ == "__main__":
    main()
