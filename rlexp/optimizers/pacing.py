"""The pace of Ape-X's data path: its depths, its training intensity, and when workers get weights.

``Pacing`` says which side must wait, so that trained / sampled steps keeps its target. ``WeightPublisher`` takes
weights from the learner for the workers that are due, no faster than they can be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlexp.optimizers.learner_thread import LearnerRunner, WeightsSnapshot
from rlexp.policy import Weights
from rlexp.rollout.source import SampleSource
from rlexp.schedules import LinearSchedule


@dataclass(frozen=True)
class DataPathConfig:
    """Settings of the data path; each depth bounds memory and staleness on one edge of it."""

    replay_depth: int
    """Replay calls in flight per shard."""
    store_depth: int
    """Most batches on their way into the shards, in equal shares; no new samples are taken at this number."""
    beta: LinearSchedule
    """The importance-sampling exponent as a function of trained steps."""
    reports_timing: bool = False
    """Whether the stats include the seconds of each phase."""
    min_weight_publish_s: float | None = None
    """Least seconds between two published versions of the weights; None: see ``WeightPublisher``."""
    num_gatherers: int = 0
    """Number of gatherers between workers and shards."""
    steps_per_row: int = 1
    """Trained steps that a row of a batch counts as: sequences have several."""


class Pacing:
    """Compares sampled with trained steps since the learner began; owned by one optimizer.

    Each side runs until it is a batch ahead of the other, so they can never wait for each other.
    """

    def __init__(self, intensity: float | None, batch_rows: int) -> None:
        """Initialise.

        ``intensity`` is trained per sampled steps, None for free running; ``batch_rows`` the rows of an update.
        """
        self._intensity = intensity
        self._batch_rows = batch_rows
        self._origin: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """Whether there is an intensity to hold, and the learner has begun."""
        return self._intensity is not None and self._origin is not None

    def begin(self, num_steps_sampled: int, num_steps_trained: int) -> None:
        """Start to compare when the learner has its first batch; later calls do nothing."""
        if self._origin is None:
            self._origin = (num_steps_sampled, num_steps_trained)

    def end(self) -> None:
        """Compare nothing until the next batch, as replay has too few rows for one."""
        self._origin = None

    def owed(self, num_steps_sampled: int, num_steps_trained: int) -> float:
        """Return how many batches training lags sampling; negative if it is ahead, 0 if no intensity is held."""
        if self._intensity is None or self._origin is None:
            return 0.0
        sampled, trained = num_steps_sampled - self._origin[0], num_steps_trained - self._origin[1]
        return (self._intensity * sampled - trained) / self._batch_rows

    def state(self) -> dict[str, Any]:
        """Return the counters at the start of the comparison."""
        return {"origin": self._origin}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        origin = state["origin"]
        self._origin = None if origin is None else (origin[0], origin[1])

    def may_train(self, num_steps_sampled: int, num_steps_trained: int, batches_on_their_way: int) -> bool:
        """Whether another batch may be asked for."""
        return not self.holds or self.owed(num_steps_sampled, num_steps_trained) - batches_on_their_way > -1.0

    def may_sample(self, num_steps_sampled: int, num_steps_trained: int) -> bool:
        """Whether more may be sampled."""
        return self.owed(num_steps_sampled, num_steps_trained) < 1.0


SENT_BYTES_PER_S = 250e6
"""Bytes per second for weights: a fifth of a 10 Gbit/s link, as batches and rows need the rest."""


class WeightPublisher:
    """Asks the learner for a copy of its weights when a worker is due, and publishes it. Owned by one optimizer.

    The node of each gatherer fetches every version. Without a bound, large weights would fill the link of the learner's
    node, and copying them would take much of the learner's time.
    """

    def __init__(
        self,
        source: SampleSource,
        learner_runner: LearnerRunner[Any],
        min_interval_s: float | None,
        num_gatherers: int,
        clock: Callable[[], float] = time.monotonic,
        min_updates: int = 1,
    ) -> None:
        """Publish at most once in ``min_interval_s`` and ``min_updates``.

        None: once in the time to send weights, 0 without gatherers.
        """
        self._source = source
        self._learner_runner = learner_runner
        self._min_interval_s = min_interval_s
        self._num_gatherers = num_gatherers
        self._min_updates = min_updates
        self._clock = clock
        self.newest: WeightsSnapshot | None = None
        """What was published last, which workers have or get next."""
        self._next_s = -1.0

    @property
    def version(self) -> int:
        """The version of the newest weights; -1 before the first."""
        return -1 if self.newest is None else self.newest.version

    def publish(self) -> None:
        """Request weights if a worker is due, and publish the newest ones, unless it is too early."""
        now = self._clock()
        if self.version >= 0 and now < self._next_s:
            return
        due = self.version + self._min_updates if self.version >= 0 else 0
        if self._learner_runner.num_updates + 1 >= due and self._source.weights_wanted():
            self._learner_runner.request_weights()
        snapshot = self._learner_runner.latest_weights()
        if snapshot.version >= due:
            self.publish_again(snapshot)
            self._next_s = now + self._interval_s(snapshot.weights)

    def publish_again(self, snapshot: WeightsSnapshot) -> None:
        """Publish weights at any time: those with which workers acted before an interrupt."""
        self._source.publish(snapshot.version, snapshot.weights)
        self.newest = snapshot

    def _interval_s(self, weights: Weights) -> float:
        if self._min_interval_s is not None:
            return self._min_interval_s
        num_bytes = sum(array.nbytes for array in weights.values())
        return num_bytes * self._num_gatherers / SENT_BYTES_PER_S
