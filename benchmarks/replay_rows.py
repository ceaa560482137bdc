"""The rows that replay_buffers.py fills buffers with: made up, or played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count

import numpy as np

from benchmarks.pieces import Pieces
from rlexp.config.keys.apex import ApexConfig
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, FrameRows, SampleBatch

ADDED = 50
"""Rows added at a time."""
PONG = "ALE/Pong-v5"
NUM_FRAGMENTS = 60
"""Fragments of Pong that are played, and then added again and again as if they were new."""
NUMBERS_PER_LAP = 1 << 20
"""More than all of their frames."""

Batches = Iterator[SampleBatch | FrameRows]


@dataclass(frozen=True)
class Kind:
    """A kind of rows."""

    capacity: int
    """Rows that each buffer holds."""
    batches: Callable[[], Batches]
    """Returns batches of about ADDED rows with TD_ERRORS, without end."""
    cycles_divisor: int
    """How many times fewer cycles than of CartPole's rows are a fair measurement."""
    buffers: tuple[str, ...]
    """What is measured unless other buffers are named."""
    needs: str | None = None
    """A module that has to be installed."""

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is there."""
        return self.needs is None or find_spec(self.needs) is not None


def cartpole_rows() -> Batches:
    """Yield the same made-up rows of CartPole again and again."""
    rng = np.random.default_rng(0)
    rows = SampleBatch(
        {
            OBS: rng.random((ADDED, 4), np.float32),
            ACTIONS: rng.integers(0, 2, ADDED),
            REWARDS: np.ones(ADDED, np.float32),
            DISCOUNTS: np.full(ADDED, 0.97, np.float32),
            NEW_OBS: rng.random((ADDED, 4), np.float32),
            TD_ERRORS: rng.random(ADDED, np.float32),
        }
    )
    while True:
        yield rows


def pong_rows() -> Batches:
    """Yield what a worker sends that plays one game of Pong at random, again and again, with new frames each time."""
    worker = Pieces(PONG, ApexConfig(num_envs_per_worker=1, sample_batch_size=ADDED)).worker()
    played = [sent for sent, _ in (worker.sample(0) for _ in range(NUM_FRAGMENTS)) if isinstance(sent, FrameRows)]
    worker.stop()
    for lap in count():
        yield from (replace(sent, numbers=sent.numbers + lap * NUMBERS_PER_LAP) for sent in played)


KINDS = {
    "cartpole": Kind(
        1 << 20, cartpole_rows, cycles_divisor=1, buffers=("rlexp", "library", "cpprb", "torchrl", "tianshou")
    ),
    # One peer: each takes 5.6 GB.
    "frames": Kind(100_000, pong_rows, cycles_divisor=10, buffers=("rlexp", "rlexp lz4", "cpprb"), needs="ale_py"),
}
