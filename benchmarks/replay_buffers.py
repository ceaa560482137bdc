"""How many replay cycles a second: add 50 rows, draw 512 by priority, write 512 new priorities.

Every buffer holds 2²⁰ CartPole rows before the clock starts, and all of them take turns, so that a
busy machine slows them alike. Libraries that are not installed are skipped.

    python benchmarks/replay_buffers.py [--repeats 7] [--cycles 500] [--json]
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rlexp.replay import ReplayConfig, ReplayShard
from rlexp.sample_batch import ACTIONS, DISCOUNTS, KEYS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch

CAPACITY = 1 << 20
ADDED, DRAWN = 50, 512
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6

Columns = dict[str, Array]
Cycle = Callable[[Columns, Array], object]
"""Adds these columns, draws a batch, and gives its rows these TD errors."""


def cartpole_rows(count: int, rng: np.random.Generator) -> Columns:
    return {
        OBS: rng.random((count, 4), np.float32),
        ACTIONS: rng.integers(0, 2, count),
        REWARDS: np.ones(count, np.float32),
        DISCOUNTS: np.full(count, 0.97, np.float32),
        NEW_OBS: rng.random((count, 4), np.float32),
        TD_ERRORS: rng.random(count, np.float32),
    }


def rlexp_cycle(rows: Columns) -> Cycle:
    config = ReplayConfig(
        CAPACITY, DRAWN, DRAWN, prioritized=True, alpha=ALPHA, beta=BETA, eps=EPS, compress_observations=False
    )
    shard = ReplayShard(config, seed=0)
    shard.add_batch(SampleBatch(rows))

    def cycle(new_rows: Columns, td_errors: Array) -> None:
        shard.add_batch(SampleBatch(new_rows))
        batch = shard.replay()
        assert batch is not None
        shard.update_priorities(batch[KEYS], td_errors)

    return cycle


def cpprb_cycle(rows: Columns) -> Cycle:
    cpprb = importlib.import_module("cpprb")
    columns = {
        name: {"shape": rows[name].shape[1:] or 1, "dtype": rows[name].dtype} for name in rows if name != TD_ERRORS
    }
    buffer = cpprb.PrioritizedReplayBuffer(CAPACITY, columns, alpha=ALPHA, eps=EPS)

    def add(new_rows: Columns) -> None:
        stored = {name: column for name, column in new_rows.items() if name != TD_ERRORS}
        buffer.add(**stored, priorities=new_rows[TD_ERRORS])

    def cycle(new_rows: Columns, td_errors: Array) -> None:
        add(new_rows)
        batch = buffer.sample(DRAWN, beta=BETA)
        buffer.update_priorities(batch["indexes"], td_errors)

    add(rows)
    return cycle


def torchrl_cycle(rows: Columns) -> Cycle:
    torch = importlib.import_module("torch")
    data = importlib.import_module("torchrl.data")
    tensordict = importlib.import_module("tensordict")
    torch.set_num_threads(1)
    storage = data.LazyTensorStorage(CAPACITY)
    buffer = data.TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, eps=EPS, storage=storage, priority_key=TD_ERRORS, batch_size=DRAWN
    )

    def add(new_rows: Columns) -> None:
        buffer.extend(tensordict.TensorDict(new_rows, batch_size=[len(new_rows[OBS])]))

    def cycle(new_rows: Columns, td_errors: Array) -> None:
        add(new_rows)
        batch = buffer.sample()
        buffer.update_priority(batch["index"], torch.from_numpy(td_errors))

    add(rows)
    return cycle


def tianshou_cycle(rows: Columns) -> Cycle:
    data = importlib.import_module("tianshou.data")
    buffer = data.PrioritizedVectorReplayBuffer(CAPACITY, ADDED, alpha=ALPHA, beta=BETA)
    going_on = np.zeros(ADDED, bool)

    def add(new_rows: Columns) -> None:
        buffer.add(
            data.Batch(
                obs=new_rows[OBS],
                act=new_rows[ACTIONS],
                rew=new_rows[REWARDS],
                terminated=going_on,
                truncated=going_on,
                obs_next=new_rows[NEW_OBS],
                discount=new_rows[DISCOUNTS],
            )
        )

    def cycle(new_rows: Columns, td_errors: Array) -> None:
        add(new_rows)
        _, indices = buffer.sample(DRAWN)
        buffer.update_weight(indices, td_errors)

    for start in range(0, CAPACITY - ADDED, ADDED):  # it takes one row for each of its parts a call
        add({name: column[start : start + ADDED] for name, column in rows.items()})
    return cycle


CANDIDATES = {"rlexp": rlexp_cycle, "cpprb": cpprb_cycle, "torchrl": torchrl_cycle, "tianshou": tianshou_cycle}


def prepare() -> dict[str, Cycle]:
    """Return the filled buffers of the libraries that are installed; say which are not."""
    rows = cartpole_rows(CAPACITY, np.random.default_rng(0))
    cycles: dict[str, Cycle] = {}
    for name, make_cycle in CANDIDATES.items():
        try:
            cycles[name] = make_cycle(rows)
        except (ImportError, RuntimeError) as error:  # RuntimeError: compiled for another torch
            print(f"{name} skipped: {error}", file=sys.stderr)
    return cycles


def measure(cycle: Cycle, cycles: int, rng: np.random.Generator) -> float:
    """Return cycles per second over ``cycles`` of them."""
    new_rows, td_errors = cartpole_rows(ADDED, rng), rng.random(DRAWN)
    start = time.perf_counter()
    for _ in range(cycles):
        cycle(new_rows, td_errors)
    return cycles / (time.perf_counter() - start)


def compare(repeats: int, cycles: int) -> list[dict[str, Any]]:
    """Return one line of the table for each buffer, the median of interleaved repeats."""
    candidates, rng = prepare(), np.random.default_rng(1)
    speeds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, cycle in candidates.items():
            speeds[name].append(measure(cycle, cycles, rng))
    ours = statistics.median(speeds["rlexp"])
    return [
        {
            "buffer": name,
            "cycles_per_s": statistics.median(runs),
            "slowest": min(runs),
            "fastest": max(runs),
            "rlexp_is_faster_by": ours / statistics.median(runs),
        }
        for name, runs in speeds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=500, help="cycles of each buffer in a repeat")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    lines = compare(args.repeats, args.cycles)
    if args.json:
        print("\n".join(json.dumps(line) for line in lines))
        return
    print(f"{'buffer':<10}{'cycles/s':>10}{'slowest':>10}{'fastest':>10}{'rlexp is faster by':>22}")
    for line in lines:
        speed = "".join(f"{line[key]:>10.0f}" for key in ("cycles_per_s", "slowest", "fastest"))
        print(f"{line['buffer']:<10}{speed}{line['rlexp_is_faster_by']:>21.2f}x")


if __name__ == "__main__":
    main()
