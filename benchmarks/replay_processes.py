"""Ape-X across processes: explorers add 50 CartPole rows at a time, one learner draws 512 and writes them priorities.

All as fast as they can, or the explorers at a pace, on one buffer that holds 2²⁰ rows before the clock
starts: rlexp.replay's SharedPrioritizedReplayBuffer (no locks, and a sum tree of the learner's own) and cpprb's
MPPrioritizedReplayBuffer (everything shared, with locks). Both take turns, with processes of their own
each time. What counts is how many rows the learner gets through, and how many are added meanwhile.

    python benchmarks/replay_processes.py [--explorers 2 4] [--pace 20000] [--repeats 5] [--json]
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.comparison import Column, Line, Table, conditions, in_turns, options, per_second
from rlexp.replay import ReplayWriter, SharedPrioritizedReplayBuffer
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array

SPAWN = multiprocessing.get_context("spawn")
CAPACITY = 1 << 20
ADDED, DRAWN = 50, 512
HEADROOM = 20 * ADDED
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
START_TIMEOUT_S, END_TIMEOUT_S = 60.0, 1.0

Columns = dict[str, Array]
Counts = ctypes.Array[ctypes.c_int64]
"""Numbers that processes share."""


class Adder(Protocol):
    """An explorer's end of a buffer; travels to its process."""

    def add(self, rows: Columns) -> None:
        """Add copies of rows ``[B, ...]`` with their TD_ERRORS."""
        ...


class Replay(Protocol):
    """The learner's end of a buffer that holds CAPACITY rows."""

    def adder(self, explorer: int) -> Adder:
        """Return the end of one explorer."""
        ...

    def cycle(self, td_errors: Array) -> object:
        """Draw a batch, and give its rows these TD errors ``[DRAWN]``."""
        ...


class RlexpAdder(NamedTuple):
    """Writes into the explorer's own ring."""

    writer: ReplayWriter

    def add(self, rows: Columns) -> None:
        add_columns(self.writer, rows)


class RlexpReplay:
    """The shared buffer of rlexp.replay. Nobody tells it what was written: it looks."""

    def __init__(self, num_explorers: int, rows: Columns) -> None:
        forms = {name: (column.shape[1:], column.dtype) for name, column in rows.items() if name != TD_ERRORS}
        self._buffer = SharedPrioritizedReplayBuffer(
            CAPACITY, forms, num_explorers, alpha=ALPHA, eps=EPS, headroom=HEADROOM, seed=0
        )
        batch = {name: column[:HEADROOM] for name, column in rows.items()}
        for explorer in range(num_explorers):
            writer = self._buffer.writer(explorer)
            for _ in range(-(-CAPACITY // num_explorers // HEADROOM)):
                add_columns(writer, batch)
                self._buffer.poll()

    def adder(self, explorer: int) -> RlexpAdder:
        return RlexpAdder(self._buffer.writer(explorer))

    def cycle(self, td_errors: Array) -> None:
        batch = self._buffer.sample(DRAWN, beta=BETA)
        self._buffer.update_priorities(batch["keys"], td_errors)


class CpprbReplay(NamedTuple):
    """One object for both ends."""

    buffer: Any

    def adder(self, explorer: int) -> Adder:
        return self

    def add(self, rows: Columns) -> None:
        add_columns(self.buffer, rows)

    def cycle(self, td_errors: Array) -> None:
        batch = self.buffer.sample(DRAWN, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], td_errors)


def add_columns(adds: Any, rows: Columns) -> None:
    """Add rows by a call that both libraries have in common."""
    stored = {name: column for name, column in rows.items() if name != TD_ERRORS}
    adds.add(**stored, priorities=rows[TD_ERRORS])


def cpprb_replay(num_explorers: int, rows: Columns) -> CpprbReplay:
    cpprb = importlib.import_module("cpprb")
    columns = {
        name: {"shape": rows[name].shape[1:] or 1, "dtype": rows[name].dtype} for name in rows if name != TD_ERRORS
    }
    replay = CpprbReplay(cpprb.MPPrioritizedReplayBuffer(CAPACITY, columns, alpha=ALPHA, eps=EPS, ctx=SPAWN))
    replay.add(rows)
    return replay


CANDIDATES: dict[str, Callable[[int, Columns], Replay]] = {"rlexp": RlexpReplay, "cpprb": cpprb_replay}


def cartpole_rows(count: int) -> Columns:
    rng = np.random.default_rng(0)
    return {
        OBS: rng.random((count, 4), np.float32),
        ACTIONS: rng.integers(0, 2, count),
        REWARDS: np.ones(count, np.float32),
        DISCOUNTS: np.full(count, 0.97, np.float32),
        NEW_OBS: rng.random((count, 4), np.float32),
        TD_ERRORS: rng.random(count, np.float32),
    }


def explore(adder: Adder, explorer: int, counts: Counts, stop: Counts, pace: float) -> None:
    """Add rows until told to stop, at most ``pace`` a second (0: no limit), and count those that were added."""
    rows, started = cartpole_rows(ADDED), time.perf_counter()
    while not stop[0]:
        adder.add(rows)
        counts[explorer] += ADDED
        if pace:
            time.sleep(max(started + counts[explorer] / pace - time.perf_counter(), 0))


@contextmanager
def explorers(replay: Replay, count: int, pace: float) -> Iterator[Counts]:
    """Run explorers; yields the rows that each has added, once all of them do."""
    counts, stop = SPAWN.RawArray(ctypes.c_int64, count), SPAWN.RawArray(ctypes.c_int64, 1)
    processes = [
        SPAWN.Process(target=explore, args=(replay.adder(index), index, counts, stop, pace), daemon=True)
        for index in range(count)
    ]
    for process in processes:
        process.start()
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(counts):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count - np.count_nonzero(counts)} explorers add nothing")
            replay.cycle(np.ones(DRAWN))
        yield counts
    finally:
        stop[0] = 1
        for process in processes:
            process.join(END_TIMEOUT_S)
            process.kill()
            process.join()


def measure(name: str, num_explorers: int, pace: float, seconds: float) -> tuple[float, float]:
    """Return the rows a second that the learner drew and updated, and those that were added meanwhile."""
    replay = CANDIDATES[name](num_explorers, cartpole_rows(CAPACITY))
    td_errors = np.random.default_rng(1).random(DRAWN)

    def cycle() -> int:
        replay.cycle(td_errors)
        return DRAWN

    with explorers(replay, num_explorers, pace) as counts:
        added, started = sum(counts), time.perf_counter()
        learned = per_second(cycle, seconds)
        return learned, (sum(counts) - added) / (time.perf_counter() - started)


def installed() -> list[str]:
    """Return the candidates that are there; say which are not."""
    names = []
    for name in CANDIDATES:
        try:
            importlib.import_module(name)
            names.append(name)
        except ImportError as error:
            print(f"{name} skipped: {error}", file=sys.stderr)
    return names


def compare(num_explorers: int, pace: float, repeats: int, seconds: float) -> list[Line]:
    """Return a line for each buffer, the medians of repeats."""
    measures = {name: partial(measure, name, num_explorers, pace, seconds) for name in installed()}
    speeds = in_turns(measures, repeats)
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in speeds.items()}
    our_learned, our_added = medians["rlexp"]
    return [
        {
            "explorers": num_explorers,
            "buffer": name,
            "learner_rows_per_s": learned,
            "added_rows_per_s": added,
            "rlexp_learns_faster_by": our_learned / learned,
            "rlexp_adds_faster_by": our_added / added,
        }
        for name, (learned, added) in medians.items()
    ]


COLUMNS = (
    Column("explorers", "explorers", 9),
    Column("buffer", "buffer", 6),
    Column("learner_rows_per_s", "learner rows/s", 14, ",.0f"),
    Column("added_rows_per_s", "added rows/s", 12, ",.0f"),
    Column("rlexp_learns_faster_by", "rlexp learns x", 14, ".1f"),
    Column("rlexp_adds_faster_by", "rlexp adds x", 12, ".1f"),
)


def main() -> None:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--explorers", type=int, nargs="+", default=[2, 4], help="how many processes add rows")
    parser.add_argument("--pace", type=float, default=0.0, help="rows a second that each explorer adds; 0: all it can")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is measured at a time")
    args = parser.parse_args()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    for num_explorers in args.explorers:
        for line in compare(num_explorers, args.pace, args.repeats, args.seconds):
            table.add(line)


if __name__ == "__main__":
    main()
