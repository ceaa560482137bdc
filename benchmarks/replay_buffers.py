"""How many replay cycles a second: add 50 rows, draw 512 by priority, write 512 new priorities.

Of two kinds of rows: CartPole's, of which every buffer holds 2²⁰, and stacks of four 84 x 84 frames,
observation and next one, of which each holds 32 000 in 1.8 GB. Every buffer is full before the clock
starts. Each is in a process of its own, as in a program that uses it: the large arrays that one library
frees would spare another the page faults that its own cost. The processes take turns, so that a busy
machine slows them alike. Libraries that are not installed are skipped.

    python benchmarks/replay_buffers.py [--rows cartpole|stacks] [--repeats 7] [--cycles 400] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.replay_peers import ADDED, CANDIDATES, DRAWN, Columns
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array

ANSWER_TIMEOUT_S = 600.0
"""Bound of the wait until a process has filled its buffer, or measured it once."""


@dataclass(frozen=True)
class Rows:
    """A kind of rows."""

    capacity: int
    obs_shape: tuple[int, ...]
    obs_dtype: type[np.generic]
    cycles_divisor: int
    """How many times fewer cycles than of CartPole's rows are a fair measurement."""

    def make(self, count: int, rng: np.random.Generator) -> Columns:
        return {
            OBS: self._observations(count, rng),
            ACTIONS: rng.integers(0, 2, count),
            REWARDS: np.ones(count, np.float32),
            DISCOUNTS: np.full(count, 0.97, np.float32),
            NEW_OBS: self._observations(count, rng),
            TD_ERRORS: rng.random(count, np.float32),
        }

    def _observations(self, count: int, rng: np.random.Generator) -> Array:
        return rng.integers(0, 256, (count, *self.obs_shape), np.uint8).astype(self.obs_dtype)


KINDS = {
    "cartpole": Rows(1 << 20, (4,), np.float32, cycles_divisor=1),
    "stacks": Rows(32_000, (84, 84, 4), np.uint8, cycles_divisor=10),
}


def serve(connection: Connection, name: str, kind: Rows) -> None:
    """Fill a buffer, say so or why not, and then answer every number of cycles with cycles per second."""
    rng = np.random.default_rng(0)
    rows, td_errors = kind.make(ADDED, rng), rng.random(DRAWN)
    try:
        buffer = CANDIDATES[name](kind.capacity, rows)
    except (ImportError, RuntimeError) as error:  # RuntimeError: compiled for another torch
        connection.send(str(error))
        return
    for _ in range(-(-kind.capacity // ADDED)):
        buffer.add(rows)
    connection.send(None)
    while cycles := connection.recv():
        start = time.perf_counter()
        for _ in range(cycles):
            buffer.add(rows)
            buffer.draw_and_update(td_errors)
        connection.send(cycles / (time.perf_counter() - start))


def answer(connection: Connection) -> Any:
    if not connection.poll(ANSWER_TIMEOUT_S):
        raise TimeoutError(f"a buffer has not answered within {ANSWER_TIMEOUT_S:.0f} s")
    return connection.recv()


@contextmanager
def filled_buffers(kind: Rows) -> Iterator[dict[str, Connection]]:
    """Yield a connection to each process whose buffer is full; say which libraries are not there."""
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    for name in CANDIDATES:
        connection, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, name, kind), daemon=True).start()
        problem = answer(connection)
        if problem is None:
            connections[name] = connection
        else:
            print(f"{name} skipped: {problem}", file=sys.stderr)
    try:
        yield connections
    finally:
        for connection in connections.values():
            connection.send(0)


def compare(kind: Rows, repeats: int, cycles: int) -> list[dict[str, Any]]:
    """Return one line of the table for each buffer, the median of interleaved repeats."""
    with filled_buffers(kind) as connections:
        speeds: dict[str, list[float]] = {name: [] for name in connections}
        for _ in range(repeats):
            for name, connection in connections.items():
                connection.send(cycles)
                speeds[name].append(answer(connection))
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


def print_table(title: str, lines: list[dict[str, Any]]) -> None:
    print(f"{title:<10}{'cycles/s':>10}{'slowest':>10}{'fastest':>10}{'rlexp is faster by':>22}")
    for line in lines:
        speed = "".join(f"{line[key]:>10.0f}" for key in ("cycles_per_s", "slowest", "fastest"))
        print(f"{line['buffer']:<10}{speed}{line['rlexp_is_faster_by']:>21.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", choices=KINDS, help="measure this kind only")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=400, help="cycles of each buffer in a repeat; of stacks a tenth")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    for name in [args.rows] if args.rows else KINDS:
        kind = KINDS[name]
        lines = compare(kind, args.repeats, max(args.cycles // kind.cycles_divisor, 1))
        if args.json:
            print("\n".join(json.dumps({"rows": name, **line}) for line in lines), flush=True)
        else:
            print_table(name, lines)


if __name__ == "__main__":
    main()
