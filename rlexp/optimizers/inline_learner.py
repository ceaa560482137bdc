"""A learner in the optimizer's own thread: so that training is repeatable, or since its updates are short."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic

from rlexp.optimizers.learner_thread import LEARNER_PARTS, LearnerOutput, OriginT, WeightsSnapshot, learner_figures
from rlexp.policy import Learner
from rlexp.sample_batch import SampleBatch


class InlineLearnerRunner(Generic[OriginT]):
    """A LearnerRunner that learns when its outputs are taken; owned by one optimizer.

    Batches wait within a step of the optimizer only: after it none does, and a checkpoint needs to hold none.
    """

    learns_in_step = True
    queue_time_s = 0.0

    def __init__(self, learner: Learner, queue_capacity: int = 1) -> None:
        """Let ``queue_capacity`` batches be drawn before the priorities of the first are known."""
        self.queue_capacity = queue_capacity
        self._learner = learner
        self.last_stats: Mapping[str, float] = {}
        self.time_s = dict.fromkeys(LEARNER_PARTS, 0.0)
        self._batches: deque[tuple[OriginT, SampleBatch]] = deque()
        self._weights_requested = False
        self._snapshot = WeightsSnapshot(learner.num_updates, learner.get_weights())

    @property
    def num_updates(self) -> int:
        return self._learner.num_updates

    def start(self) -> None:
        return None

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._learner.observe_progress(num_steps_sampled)

    def stats(self) -> dict[str, Any]:
        return learner_figures(self, self._learner)

    def put(self, origin: OriginT, batch: SampleBatch) -> None:
        self._batches.append((origin, batch))

    @property
    def queue_size(self) -> int:
        return len(self._batches)

    def wait_for_output(self, timeout: float) -> None:
        return None

    def outputs(self) -> list[LearnerOutput[OriginT]]:
        outputs = []
        while self._batches:
            origin, batch = self._batches.popleft()
            started = time.perf_counter()
            result = self._learner.learn_on_batch(batch)
            self.time_s["learning"] += time.perf_counter() - started
            self.last_stats = result.stats
            outputs.append(LearnerOutput(origin, batch.count, result.td_errors))
        if outputs and self._weights_requested:
            self._weights_requested = False
            self._snapshot = WeightsSnapshot(self._learner.num_updates, self._learner.get_weights())
        return outputs

    def request_weights(self) -> None:
        self._weights_requested = True

    def latest_weights(self) -> WeightsSnapshot:
        return self._snapshot

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        yield self._learner

    def stop(self) -> None:
        return None
