"""Workers, a shard and a learner that only send canned data: what is left is the cost of what is between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.policy import LearnResult, Weights
from rlexp.replay.shard import ShardStats
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    FRAME_IDS,
    IMPORTANCE_WEIGHTS,
    KEYS,
    NEW_FRAME_IDS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    FrameRows,
    SampleBatch,
    SentRows,
)

BATCH_SIZE = 512
STACK, FRAME, SMALL = 4, (84, 84, 1), 4
NUM_WEIGHTS = 1_690_000
"""Float32 numbers of DQN's network for Atari."""
LONGEST_LAG_S = 1.0
"""A worker that is behind its pace catches up so much."""


@dataclass(frozen=True)
class Load:
    """What canned workers send, as on the command line: ``360:0.695:50:atari``."""

    num_workers: int
    rate: float
    """Fragments a second of each; 0: as fast as they are asked."""
    num_rows: int
    """Of a fragment."""
    kind: str
    """``atari``: stacks of four frames, each frame sent once, 7 kB a row; ``small``: 4 numbers, 60 bytes a row."""

    @classmethod
    def read(cls, text: str) -> Load:
        """Return what ``text`` says; ValueError where it says something else."""
        num_workers, rate, num_rows, kind = text.split(":")
        if kind not in ("atari", "small"):
            raise ValueError(f"{kind} is neither atari nor small")
        return cls(int(num_workers), float(rate), int(num_rows), kind)


def canned_rows(load: Load, worker: int) -> SentRows:
    """Return a fragment; those of two workers have no frame in common."""
    count = load.num_rows
    columns: dict[str, Array] = {
        ACTIONS: np.zeros(count, np.int64),
        REWARDS: np.zeros(count, np.float32),
        DISCOUNTS: np.zeros(count, np.float32),
        TD_ERRORS: np.zeros(count, np.float32),
    }
    if load.kind == "small":
        numbers = np.zeros((count, SMALL), np.float32)
        return SampleBatch({**columns, OBS: numbers, NEW_OBS: numbers.copy()})
    ids = (np.arange(count)[:, None] + np.arange(STACK)).astype(np.int32)
    frames = np.random.default_rng(0).integers(0, 255, (count + STACK, *FRAME), dtype=np.uint8)
    first = worker * len(frames)
    rows = SampleBatch({**columns, FRAME_IDS: ids, NEW_FRAME_IDS: ids + 1})
    return FrameRows(rows, frames, np.arange(first, first + len(frames)))


def canned_info(load: Load, worker: int) -> SampleInfo:
    """Return the report about a fragment in which no episode ended."""
    return SampleInfo(worker, load.num_rows, load.num_rows, Episodes.join([]), 0, SampleTime())


class CannedWorkers:
    """Many workers in one process, which keep a pace; an actor with asynchronous methods."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._due_s: dict[int, float] = {}
        self._rows: dict[int, SentRows] = {}

    async def sample(self, worker: int, num_steps_sampled: int) -> tuple[SentRows, SampleInfo]:
        """Return the worker's fragment once it is due."""
        if self._load.rate:
            await asyncio.sleep(max(self._next_s(worker) - time.monotonic(), 0.0))
        if worker not in self._rows:
            self._rows[worker] = canned_rows(self._load, worker)
        return self._rows[worker], canned_info(self._load, worker)

    async def set_weights(self, worker: int, version: int, weights: Weights) -> None:
        """Take weights."""

    async def set_filter(self, worker: int, moments: object) -> None:
        """Take moments."""

    def _next_s(self, worker: int) -> float:
        now, interval_s = time.monotonic(), 1 / self._load.rate
        started_s = now + worker * 0.618 % 1 * interval_s  # they begin one after the other
        self._due_s[worker] = max(self._due_s.get(worker, started_s), now - LONGEST_LAG_S) + interval_s
        return self._due_s[worker]


class CannedShard:
    """Counts what it is given, and hands out the same batch again and again."""

    def __init__(self, kind: str) -> None:
        self._num_added = 0
        shape, dtype = ((BATCH_SIZE, 84, 84, 4), np.uint8) if kind == "atari" else ((BATCH_SIZE, SMALL), np.float32)
        observations = np.zeros(shape, dtype)
        numbers = np.zeros(BATCH_SIZE, np.float32)
        self._batch = SampleBatch(
            {
                OBS: observations,
                NEW_OBS: observations,
                ACTIONS: np.zeros(BATCH_SIZE, np.int64),
                REWARDS: numbers,
                DISCOUNTS: numbers,
                IMPORTANCE_WEIGHTS: numbers + 1,
                KEYS: np.arange(BATCH_SIZE),
            }
        )

    def add_batch(self, sent: SentRows) -> int:
        """Count rows."""
        self._num_added += sent.count
        return sent.count

    def replay(self, beta: float | None = None) -> SampleBatch:
        """Return the batch."""
        return self._batch

    def update_priorities(self, keys: object, td_errors: object) -> int:
        """Take priorities."""
        return 0

    def stats(self) -> ShardStats:
        """Return the count."""
        return ShardStats(0, 1, self._num_added, 0, 0, 0)


class CannedLearner:
    """Sleeps instead of learning."""

    def __init__(self, updates_per_s: float) -> None:
        self.num_updates = 0
        self._update_s = 1 / updates_per_s
        self._weights = {"layer": np.zeros(NUM_WEIGHTS, np.float32)}

    def observe_progress(self, num_steps_sampled: int) -> None:
        """Take the clock."""

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Take as long as an update would."""
        self.num_updates += 1
        time.sleep(self._update_s)
        return LearnResult({}, np.zeros(BATCH_SIZE, np.float32))

    def stats(self) -> Mapping[str, Any]:
        """Return no figures."""
        return {}

    def get_weights(self) -> Weights:
        """Return a copy."""
        return {name: array.copy() for name, array in self._weights.items()}

    def state_dict(self) -> Weights:
        """Return the weights."""
        return self._weights

    def load_state_dict(self, state: Weights) -> None:
        """Take a state."""
