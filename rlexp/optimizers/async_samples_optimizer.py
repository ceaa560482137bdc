"""Stage 2 of the data path without replay: the learner takes fragments as they come, and no worker waits for it.

Rows are then of older policies than the learner's, and it corrects for that (IMPALA, APPO) or not (A3C).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, ActorLostError, ArgumentLostError, TaskPool
from rlexp.metrics import Mean, Stopwatch
from rlexp.optimizers.batch_ring import AgedRows, BatchRing, OldFragments, PolicyLags
from rlexp.optimizers.learner_thread import BUSY_WAIT_SHARE, LearnerRunner, LearnerTime
from rlexp.optimizers.pacing import WeightPublisher
from rlexp.optimizers.policy_optimizer import Counters, source_figures
from rlexp.policy import Learner
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fragment import SampleInfo, whole_rows
from rlexp.rollout.source import Sample, SampleSource
from rlexp.sample_batch import SampleBatch

STEP_TIMEOUT_S = 0.05
"""Seconds after which a step returns even if nothing arrived, so that its caller can check the time."""


@dataclass(frozen=True)
class AsyncSamplesConfig:
    """How train batches are made of fragments, and how old these may be."""

    train_batch_size: int
    """Least env steps of a train batch; 1: each fragment is one."""
    steps_per_call: int
    """Env steps of a worker's call, about."""
    num_passes: int = 1
    """How often each train batch is learned (``num_sgd_iter``)."""
    num_slots: int = 1
    """Train batches whose passes alternate (``minibatch_buffer_size``)."""
    broadcast_interval: int = 1
    """Updates between two versions of the weights for workers, at least."""
    replay_proportion: float = 0.0
    """Old fragments beside each new one, on average."""
    num_replay_slots: int = 0
    """Newest fragments among which old ones are drawn."""
    max_policy_lag: int | None = None
    """Most updates by which the learner may be ahead of the policy whose steps it learns; None: no limit."""


class AsyncSamplesOptimizer:
    """Keeps workers and the learner busy at the same time; owned by one agent, in one thread.

    Batches are learned in the order in which they are queued, one update each. So the age at which a step will be
    learned is known when its batch is queued, and steps that would be too old are dropped then.
    """

    at_rest = True  # a checkpoint keeps a train batch that is collected in part

    def __init__(
        self,
        pool: TaskPool,
        source: SampleSource,
        learner_runner: LearnerRunner[int],
        config: AsyncSamplesConfig,
        rng: np.random.Generator,
    ) -> None:
        """Initialise; ``rng`` draws old fragments. The origin of a batch is its number of steps."""
        self.counters = Counters()
        self._pool = pool
        self._source = source
        self._runner = learner_runner
        self._config = config
        self._publisher = WeightPublisher(source, learner_runner, 0.0, 0, min_updates=config.broadcast_interval)
        self._collected: deque[AgedRows] = deque()
        self._ring = BatchRing(config.num_slots, config.num_passes)
        self._old = OldFragments(config.replay_proportion, config.num_replay_slots, rng)
        self._num_queued = learner_runner.num_updates
        self._num_fragments_lost = self._num_steps_dropped = 0
        self._infos: list[SampleInfo] = []
        self._weight_age, self._lags = Mean(), PolicyLags()
        self._learner_time = LearnerTime(learner_runner)
        self._stopwatch = Stopwatch()

    @property
    def num_updates(self) -> int:
        return self._runner.num_updates

    def start(self) -> None:
        """Publish the first weights and start the learner."""
        self._publisher.publish()
        self._runner.start()

    def step(self, should_stop: ShouldStop = never) -> None:
        """Wait for an arrival, make train batches of what has arrived, queue them, and publish new weights."""
        self._wait()
        if not self._is_full:
            for sample in self._source.poll(self.counters.num_steps_sampled, self._num_wanted()):
                self._collect(sample)
            self._runner.observe_progress(self.counters.num_steps_sampled)
        self._feed_learner()
        self._count_outputs()
        self._publisher.publish()

    def drain_infos(self) -> list[SampleInfo]:
        infos, self._infos = self._infos, []
        return infos

    def drain_events(self) -> list[str]:
        return self._source.drain_events()

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        with self._runner.paused() as learner:
            self._count_outputs()
            yield learner

    def state(self) -> dict[str, Any]:
        """Return the rows that wait and that have passes left; batches in a thread's queue are not part of it."""
        return {
            "collected": [part.state() for part in self._collected],
            "ring": self._ring.state(),
            "old_fragments": self._old.state(),
            "num_steps_dropped": self._num_steps_dropped,
            "learner_stats": dict(self._runner.last_stats),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._collected = deque(AgedRows.from_state(part) for part in state["collected"])
        self._ring.load(state["ring"])
        self._old.load(state["old_fragments"])
        self._num_steps_dropped = state["num_steps_dropped"]
        self._runner.last_stats = state["learner_stats"]

    def stats(self) -> dict[str, Any]:
        time_share = self._learner_time.shares(self._stopwatch.drain().elapsed_s)
        return {
            **self._runner.stats(),
            **source_figures(self._source),
            "num_fragments_lost": self._num_fragments_lost,
            "num_steps_dropped": self._num_steps_dropped,
            "learner_wait_share": time_share["wait"],
            "learner_time_share": time_share,
            "weight_age": self._weight_age.drain(),
            "policy_lag": self._lags.drain(),
            "bottleneck": "learner" if time_share["wait"] <= BUSY_WAIT_SHARE else "workers",
        }

    def stop(self) -> None:
        self._runner.stop()
        self._source.stop()

    @property
    def _is_full(self) -> bool:
        """Whether a complete train batch waits for room, so that no more samples are taken."""
        return self._num_missing() <= 0

    def _num_missing(self) -> int:
        """Return how many steps the next train batch still needs."""
        return self._config.train_batch_size - sum(part.num_steps for part in self._collected)

    def _num_wanted(self) -> int | None:
        """Return the most calls of workers whose steps will not be too old, with those in flight; None: no limit."""
        config = self._config
        if config.max_policy_lag is None:
            return None
        updates_before = self._num_queued - self._publisher.version
        later_passes = (config.num_passes - 1) * config.num_slots
        room = max(config.max_policy_lag - later_passes, config.broadcast_interval - 1) - updates_before
        num_batches = room // config.num_passes + 1
        num_steps = self._num_missing() + (num_batches - 1) * config.train_batch_size
        return max(math.ceil(num_steps / config.steps_per_call), 0) if num_batches > 0 else 0

    def _wait(self) -> None:
        """Wait for samples, or for the learner if there is no room for more or no call is in flight."""
        if self._source.has_waiting and not self._is_full:
            return
        if self._is_full or not self._source.wait(STEP_TIMEOUT_S):
            self._runner.wait_for_output(STEP_TIMEOUT_S)

    def _collect(self, sample: Sample) -> None:
        """Add a sample to the next train batch, with the old ones that go with it."""
        info = sample.info
        try:
            rows = self._pool.get(sample.batch, GET_TIMEOUT_S) if info.num_rows else None
        except (ActorLostError, ArgumentLostError):
            self._num_fragments_lost += 1
            return  # lost with its machine: its rows do not count
        self._infos.append(info)
        self._weight_age.add(self._runner.num_updates - info.weights_version)
        self.counters.num_steps_sampled += info.num_env_steps
        if rows is not None:
            new = AgedRows.of(rows, info.weights_version)
            self._collected += [new, *self._old.beside(new)]

    def _feed_learner(self) -> None:
        """Queue batches while there is room for them."""
        while self._runner.queue_size < self._runner.queue_capacity:
            if self._ring.needs_batch:
                if not self._is_full:
                    return
                self._ring.fill(self._next_batch())
            self._queue_batch()

    def _next_batch(self) -> list[AgedRows]:
        """Take the oldest fragments that make a train batch."""
        parts, num_steps = [], 0
        while num_steps < self._config.train_batch_size:
            parts.append(self._collected.popleft())
            num_steps += parts[-1].num_steps
        return parts

    def _queue_batch(self) -> None:
        """Queue the batch whose turn it is, without the steps that would be too old."""
        limit = self._config.max_policy_lag
        parts, num_dropped = self._ring.take(-1 if limit is None else self._num_queued - limit)
        self._num_steps_dropped += num_dropped
        if not parts:
            return
        for part in parts:
            self._lags.add(self._num_queued - part.version, part.num_steps)
        self._runner.put(sum(part.num_steps for part in parts), _joined(parts))
        self._num_queued += 1

    def _count_outputs(self) -> None:
        for output in self._runner.outputs():
            self.counters.num_steps_trained += output.origin


def _joined(parts: Sequence[AgedRows]) -> SampleBatch:
    return SampleBatch.concat((whole_rows(part.rows) for part in parts), sum(len(part.rows) for part in parts))
