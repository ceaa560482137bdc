"""Stage 2 of the data path in PPO: collect a train batch with the newest weights, learn on it, publish the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, ActorLostError, ArgumentLostError, TaskPool
from rlexp.optimizers.policy_optimizer import STEP_TIMEOUT_S, SourceOptimizer
from rlexp.policy import InterruptedLearningError, Learner, LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fragment import whole_rows
from rlexp.rollout.source import Sample, SampleSource
from rlexp.sample_batch import SampleBatch, SentRows


@dataclass(frozen=True)
class TrainBatchConfig:
    """How a train batch is collected."""

    size: int
    """Least env steps (``train_batch_size``)."""
    steps_per_call: int
    """Least env steps that a call of a worker counts as, with the steps that reset an env."""
    num_workers: int
    """Number of workers; each contributes to every train batch."""
    overlaps: bool
    """Whether the next batch is sampled while this one is learned, with the previous weights (``sample_async``)."""
    least_env_steps: int = 0
    """Least env steps beside ``size``, which counts rows then (ES)."""
    calls_for_more: int = 0
    """Calls of workers that are asked for at a time while these env steps are missing."""


class TrainBatchLearner(Learner, Protocol):
    """A Learner that takes long for a batch and can be interrupted."""

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Learn on a train batch; may raise InterruptedLearningError once ``should_stop`` returns True."""


@dataclass
class Collected:
    """The part of a train batch that has arrived."""

    batches: list[SentRows] = field(default_factory=list)
    num_calls: int = 0
    """Number of calls of workers."""
    num_steps: int = 0
    """Env steps that the calls count as."""
    num_env_steps: int = 0
    """Env steps that workers took in them."""

    def join(self) -> SampleBatch | None:
        """Return the rows as one batch, which replaces its parts; None if there are none."""
        if not self.batches:
            return None
        batch = SampleBatch.concat(_each_freed(self.batches), sum(map(len, self.batches)))
        self.batches = [batch]
        return batch

    def followed_by(self, later: Collected) -> Collected:
        """Return both as one."""
        return Collected(
            self.batches + later.batches,
            self.num_calls + later.num_calls,
            self.num_steps + later.num_steps,
            self.num_env_steps + later.num_env_steps,
        )


class SyncSamplesOptimizer(SourceOptimizer):
    """Alternates between collecting a train batch and learning on it; owned by one agent, in one thread.

    Without overlap, a train batch is sampled with the newest weights only. They are published before the first call of
    a worker, and no call is in flight when the learner begins. Other workers get the calls of a lost worker.
    """

    def __init__(
        self, pool: TaskPool, source: SampleSource, learner: TrainBatchLearner, config: TrainBatchConfig
    ) -> None:
        super().__init__(pool, source)
        self.learner_stats: Mapping[str, float] = {}
        """The learner's own stats, of its newest train batch."""
        self._learner = learner
        self._config = config
        self._collected = Collected()

    @property
    def at_rest(self) -> bool:
        """Whether no train batch is collected in part."""
        return not self._collected.num_calls

    @property
    def num_updates(self) -> int:
        return self._learner.num_updates

    def start(self) -> None:
        """Publish the first weights."""
        self._publish_weights()

    def step(self, should_stop: ShouldStop = never) -> None:
        """Take the samples that have arrived; if they complete a train batch, learn on it and publish the weights.

        If ``should_stop`` interrupts learning, the batch stays complete and not learned.
        """
        with self._stopwatch.lap("workers"):
            samples = self._source.poll(self.counters.num_steps_sampled, self._num_wanted())
            for sample in samples:
                self._collect(sample)
            if not samples and self._is_incomplete():
                self._source.wait(STEP_TIMEOUT_S)
        if self._is_incomplete():
            return
        taken, self._collected = self._collected, Collected()
        if self._config.overlaps:
            with self._stopwatch.lap("workers"):
                self._ask_ahead()
        with self._stopwatch.lap("learner"):
            try:
                self._learn(taken.join(), should_stop)
            except InterruptedLearningError:
                self._collected = taken.followed_by(self._collected)
                return
        with self._stopwatch.lap("weights"):
            self._publish_weights()

    def paused(self) -> AbstractContextManager[Learner]:
        return nullcontext(self._learner)

    def state(self) -> dict[str, Any]:
        """Return the rows of a train batch that is collected in part, and the learner's newest stats."""
        return {
            "batches": [_columns(batch) for batch in self._collected.batches],
            "num_calls": self._collected.num_calls,
            "collected": self._collected.num_steps,
            "env_steps": self._collected.num_env_steps,
            "learner_stats": dict(self.learner_stats),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        batches: list[SentRows] = [SampleBatch(columns) for columns in state["batches"]]
        env_steps = state.get("env_steps", 0)  # checkpoints of older versions lack it
        self._collected = Collected(batches, state["num_calls"], state["collected"], env_steps)
        self.learner_stats = state["learner_stats"]

    def stats(self) -> dict[str, Any]:
        lap = self._stopwatch.drain()
        time_share = {part: lap.parts_s.get(part, 0.0) / max(lap.elapsed_s, 1e-9) for part in ("workers", "learner")}
        return {
            "num_updates": self.num_updates,
            **self._learner.stats(),
            **self._source_figures(),
            "num_fragments_lost": self._num_fragments_lost,
            "learner_wait_share": 1.0 - time_share["learner"],
            "learner_time_share": time_share,
            "weight_age": self._weight_age.drain(),
            "bottleneck": max(time_share, key=time_share.__getitem__),
            "learner": dict(self.learner_stats),
        }

    def _num_wanted(self) -> int:
        """Return the number of worker calls that the train batch still needs, with those in flight."""
        config = self._config
        missing = -(-(config.size - self._collected.num_steps) // config.steps_per_call)
        if missing <= 0 and self._collected.num_env_steps < config.least_env_steps:
            missing = config.calls_for_more
        return max(missing, max(config.num_workers, 1) - self._collected.num_calls, 0)

    def _is_incomplete(self) -> bool:
        """Whether rows are missing, or calls of this train batch are still in flight."""
        return self._num_wanted() > 0 or (self._source.num_in_flight > 0 and not self._config.overlaps)

    def _collect(self, sample: Sample) -> None:
        """Add a sample to the train batch; without overlap, the learner's newest weights must have acted in it."""
        info = sample.info
        age = self.num_updates - info.weights_version
        assert self._config.overlaps or age == 0, (
            f"worker {info.worker_index} sampled with weights of {age} updates ago"
        )
        try:
            batch = self._pool.get(sample.batch, GET_TIMEOUT_S) if info.num_rows else None
        except (ActorLostError, ArgumentLostError):
            self._num_fragments_lost += 1
            return  # lost with its machine: its rows do not count, and another call is asked for
        self._count(info, self.num_updates)
        self._collected.num_calls += 1
        self._collected.num_steps += max(info.num_rows, self._config.steps_per_call)
        self._collected.num_env_steps += info.num_env_steps
        if batch is not None:
            self._collected.batches.append(batch)

    def _ask_ahead(self) -> None:
        """Let the workers begin the next train batch; samples that have arrived belong to it."""
        for sample in self._source.poll(self.counters.num_steps_sampled, self._num_wanted()):
            self._collect(sample)

    def _learn(self, batch: SampleBatch | None, should_stop: ShouldStop) -> None:
        if batch is None:
            return
        self._learner.observe_progress(self.counters.num_steps_sampled)
        self.learner_stats = self._learner.learn_on_batch(batch, should_stop).stats
        self.counters.num_steps_trained += batch.count

    def _publish_weights(self) -> None:
        self._source.publish(self._learner.num_updates, self._learner.get_weights())


def _each_freed(batches: list[SentRows]) -> Iterator[SampleBatch]:
    """Yield the rows of each batch and remove it; otherwise a large train batch would be in memory three times."""
    while batches:
        yield whole_rows(batches.pop(0))


def _columns(batch: SentRows) -> dict[str, np.ndarray[Any, Any]]:
    return dict(whole_rows(batch).columns)
