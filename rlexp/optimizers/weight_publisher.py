"""WeightPublisher: takes weights from the learner for the workers that are due, no faster than they can be sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlexp.optimizers.learner_thread import LearnerRunner
from rlexp.policy import Weights
from rlexp.rollout.source import SampleSource

SENT_BYTES_PER_S = 250e6
"""What the learner's node is taken to send: a fifth of a 10 Gbit/s cable, of which batches and rows need the rest."""


class WeightPublisher:
    """Asks the learner for a copy of its weights when a worker is due, and publishes it. Owned by one optimizer.

    The node of each gatherer fetches every version. With no bound, weights that take long to send would fill the
    cable of the learner's node, and copying them would take much of the learner's time.
    """

    def __init__(
        self,
        source: SampleSource,
        learner_runner: LearnerRunner[Any],
        min_interval_s: float | None,
        num_gatherers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish at most once in ``min_interval_s``; None: in the time that sending takes, 0 without gatherers."""
        self._source = source
        self._learner_runner = learner_runner
        self._min_interval_s = min_interval_s
        self._num_gatherers = num_gatherers
        self._clock = clock
        self._published_version = -1
        self._next_s = -1.0

    def publish(self) -> None:
        """Request weights if a worker is due, and publish the newest ones, unless it is too early."""
        now = self._clock()
        if self._published_version >= 0 and now < self._next_s:
            return
        if self._source.weights_wanted():
            self._learner_runner.request_weights()
        snapshot = self._learner_runner.latest_weights()
        if snapshot.version > self._published_version:
            self._source.publish(snapshot.version, snapshot.weights)
            self._published_version = snapshot.version
            self._next_s = now + self._interval_s(snapshot.weights)

    def _interval_s(self, weights: Weights) -> float:
        if self._min_interval_s is not None:
            return self._min_interval_s
        num_bytes = sum(array.nbytes for array in weights.values())
        return num_bytes * self._num_gatherers / SENT_BYTES_PER_S
