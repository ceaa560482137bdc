"""How many replay cycles a second: add 50 rows, draw 512 by priority, write 512 new priorities; and draws alone.

Of two kinds of rows: CartPole's, of which every buffer holds 2²⁰, and Pong's, played with the preprocessing
of Mnih et al. 2015, of which each holds 100 000: stacks of four 84 x 84 frames, observation and next one, 5.6 GB
of them. rlexp gets the rows as its workers send them, frame by frame, and keeps each frame once, with "lz4"
compressed; the others get whole stacks. "rlexp" is the replay of a run, "library" is rlexp.replay's
PrioritizedReplayBuffer for other programs. Every buffer is full before the clock starts. Each is in a process of
its own, as in a program that uses it: the large arrays that one library frees would spare another the page
faults that its own cost. The processes take turns, so that a busy machine slows them alike. Libraries that are
not installed are skipped.

What a row takes is what rlexp says itself, and of the others their columns; beside it, by how much the process
grew, which may be less where it had memory to spare.

    python benchmarks/replay_buffers.py [--rows cartpole|frames] [--buffers library cpprb] [--capacity 32000] [--json]
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from benchmarks.comparison import Column, Table, conditions, in_turns, options
from benchmarks.processes import unwind_on_sigterm
from benchmarks.replay_peers import DRAWN, OURS, PEERS, Buffer, whole_columns
from benchmarks.replay_rows import KINDS, Kind

ANSWER_TIMEOUT_S = 600.0
"""Bound of the wait until a process has filled its buffer, or measured it once."""
MEASURED_BATCHES = 30
"""Batches that are added again and again while the clock runs; they are made before."""
CYCLES, DRAWS = "cycles_per_s", "draws_per_s"

COLUMNS = (
    Column("rows", "rows", 8),
    Column("buffer", "buffer", 9),
    Column("held", "held", 9, ",.0f"),
    Column("bytes_per_row", "bytes a row", 11, ",.0f"),
    Column("rss_per_row", "of RSS", 7, ",.0f"),
    Column(CYCLES, "cycles/s", 8, ",.0f"),
    Column("slowest", "slowest", 8, ",.0f"),
    Column("fastest", "fastest", 8, ",.0f"),
    Column("rlexp_cycles_times", "rlexp x", 7, ".2f"),
    Column(DRAWS, "draws/s", 8, ",.0f"),
    Column("rlexp_draws_times", "rlexp x", 7, ".2f"),
)


def serve(connection: Connection, name: str, kind: Kind) -> None:
    """Fill a buffer, say what its rows take or why it cannot, and then answer what is to be measured how often."""
    batches: Iterator[Any] = kind.batches()
    if name in PEERS:
        batches = map(whole_columns, batches)
    first = next(batches)
    gc.collect()
    before = psutil.Process().memory_info().rss
    try:
        buffer = {**OURS, **PEERS}[name](kind.capacity, first)
    except (ImportError, RuntimeError) as error:  # RuntimeError: compiled for another torch
        connection.send(str(error))
        return
    fill(buffer, batches, kind.capacity)
    gc.collect()
    rss = psutil.Process().memory_info().rss - before
    connection.send({"bytes_per_row": buffer.nbytes / kind.capacity, "rss_per_row": rss / kind.capacity})
    works = {
        CYCLES: partial(cycles, buffer, cycle(list(islice(batches, MEASURED_BATCHES)))),
        DRAWS: partial(draws, buffer),
    }
    while request := connection.recv():
        work, count = request
        start = time.perf_counter()
        works[work](count)
        connection.send(count / (time.perf_counter() - start))


def fill(buffer: Buffer, batches: Iterator[Any], capacity: int) -> None:
    added = 0
    while added < capacity:
        batch = next(batches)
        buffer.add(batch)
        added += len(batch["obs"]) if isinstance(batch, dict) else len(batch)


def cycles(buffer: Buffer, batches: Iterator[Any], count: int) -> None:
    td_errors = np.random.default_rng(0).random(DRAWN)
    for batch in islice(batches, count):
        buffer.add(batch)
        buffer.update(buffer.draw(), td_errors)


def draws(buffer: Buffer, count: int) -> None:
    for _ in range(count):
        buffer.draw()


def answer(connection: Connection) -> Any:
    if not connection.poll(ANSWER_TIMEOUT_S):
        raise TimeoutError(f"a buffer has not answered within {ANSWER_TIMEOUT_S:.0f} s")
    return connection.recv()


def ask(connection: Connection, work: str, count: int) -> float:
    connection.send((work, count))
    speed: float = answer(connection)
    return speed


@contextmanager
def filled_buffers(kind: Kind, names: Sequence[str]) -> Iterator[dict[str, tuple[Connection, dict[str, float]]]]:
    """Yield a connection to each process whose buffer is full, and what its rows take; say which are not there."""
    context = multiprocessing.get_context("spawn")
    filled: dict[str, tuple[Connection, dict[str, float]]] = {}
    try:
        for name in names:
            connection, theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, name, kind), daemon=True).start()
            said = answer(connection)
            if isinstance(said, str):
                print(f"{name} skipped: {said}", file=sys.stderr)
            else:
                filled[name] = connection, said
        yield filled
    finally:
        for connection, _ in filled.values():
            connection.send(None)


def compare(title: str, kind: Kind, names: Sequence[str], repeats: int, count: int) -> list[dict[str, Any]]:
    """Return one line of the table for each buffer, the medians of interleaved repeats."""
    with filled_buffers(kind, names) as filled:
        works: dict[tuple[str, str], Callable[[], float]] = {
            (name, work): partial(ask, connection, work, count)
            for work in (CYCLES, DRAWS)
            for name, (connection, _) in filled.items()
        }
        runs = in_turns(works, repeats)
    medians = {key: statistics.median(speeds) for key, speeds in runs.items()}
    ours = next(iter(filled), None)
    return [
        {
            "rows": title,
            "buffer": name,
            "held": kind.capacity,
            **takes,
            **{work: medians[name, work] for work in (CYCLES, DRAWS)},
            "slowest": min(runs[name, CYCLES]),
            "fastest": max(runs[name, CYCLES]),
            "rlexp_cycles_times": medians[ours, CYCLES] / medians[name, CYCLES] if ours else None,
            "rlexp_draws_times": medians[ours, DRAWS] / medians[name, DRAWS] if ours else None,
        }
        for name, (_, takes) in filled.items()
    ]


def main() -> None:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--rows", choices=KINDS, help="measure this kind only")
    parser.add_argument(
        "--buffers", nargs="+", choices=[*OURS, *PEERS], help="measure these, against the first of them"
    )
    parser.add_argument("--cycles", type=int, default=400, help="cycles of each buffer in a repeat; of frames a tenth")
    parser.add_argument("--capacity", type=int, metavar="N", help="rows that each holds, where memory is short")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    for title in [args.rows] if args.rows else KINDS:
        kind = KINDS[title]
        if not kind.is_possible:
            print(f"{title} skipped: pip install {kind.needs}", file=sys.stderr)
            continue
        names = args.buffers or kind.buffers
        kind = replace(kind, capacity=args.capacity or kind.capacity)
        for line in compare(title, kind, names, args.repeats, max(args.cycles // kind.cycles_divisor, 1)):
            table.add(line)


if __name__ == "__main__":
    main()
