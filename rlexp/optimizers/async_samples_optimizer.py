"""Stage 2 of the data path without replay: the learner takes fragments as they come, and no worker waits for it.

Fragments become train batches, and each batch is learned several times. Its rows are of older policies than the
learner's, which corrects for that (IMPALA, APPO) or not (A3C).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, ActorLostError, ArgumentLostError, TaskPool
from rlexp.optimizers.learner_thread import BUSY_WAIT_SHARE, LearnerRunner, LearnerTime, WeightsSnapshot
from rlexp.optimizers.pacing import WeightPublisher
from rlexp.optimizers.policy_optimizer import STEP_TIMEOUT_S, SourceOptimizer
from rlexp.policy import Learner
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import IS_STEP
from rlexp.rollout.fragment import whole_rows
from rlexp.rollout.source import Sample, SampleSource
from rlexp.sample_batch import FrameRows, SampleBatch, SentRows, WrittenRows


@dataclass(frozen=True)
class AgedRows:
    """The rows of a fragment, and the version of the weights that acted in it."""

    rows: SentRows
    num_steps: int
    """Env steps among the rows."""
    version: int
    """Number of updates that the weights of its last step include."""
    counts_as: int
    """Env steps of a train batch that it makes up, with the steps that reset an env."""

    @staticmethod
    def of(rows: SentRows, version: int, least_steps: int = 0) -> AgedRows:
        """Return ``rows`` with their number of steps, which IS_STEP marks if there are other rows.

        They count as ``least_steps`` or more.
        """
        num_steps = num_steps_of(rows)
        return AgedRows(rows, num_steps, version, max(num_steps, least_steps))

    def state(self) -> dict[str, Any]:
        """Return its rows, its version, and what it counts as."""
        return {"columns": dict(whole_rows(self.rows).columns), "version": self.version, "counts_as": self.counts_as}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> AgedRows:
        """Return what ``state`` was made of; older checkpoints have no ``counts_as``."""
        return AgedRows.of(SampleBatch(state["columns"]), state["version"], state.get("counts_as", 0))


def num_steps_of(rows: SentRows) -> int:
    """Return the number of env steps in ``rows``."""
    columns = rows.rows if isinstance(rows, FrameRows) else rows
    if isinstance(columns, WrittenRows) or IS_STEP not in columns:
        return len(rows)
    return int(np.count_nonzero(columns[IS_STEP]))


class OldFragments:
    """Draws old fragments to be learned beside each new one (``replay_proportion``); owned by one optimizer."""

    def __init__(self, proportion: float, num_slots: int, rng: np.random.Generator) -> None:
        """Return ``proportion`` fragments for each new one on average, of the newest ``num_slots``."""
        self._proportion = proportion if num_slots else 0.0
        self._kept: deque[AgedRows] = deque(maxlen=num_slots)
        self._rng = rng

    def beside(self, fragment: AgedRows) -> list[AgedRows]:
        """Keep a new fragment; return the old ones that go with it, which may be the new one itself."""
        if not self._proportion:
            return []
        self._kept.append(fragment)
        number = int(self._proportion + self._rng.random())
        return [self._kept[index] for index in self._rng.integers(len(self._kept), size=number)]

    def state(self) -> dict[str, Any]:
        """Return the fragments, and the state of the generator."""
        return {"kept": [each.state() for each in self._kept], "rng": self._rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._kept.extend(AgedRows.from_state(each) for each in state["kept"])
        self._rng.bit_generator.state = state["rng"]


@dataclass
class _TrainBatch:
    parts: list[AgedRows]
    passes_left: int
    is_new: bool = True
    """Whether it has had no pass."""


class BatchRing:
    """Holds the train batches that are learned in turns, each ``num_passes`` times; owned by one optimizer.

    With one slot, a batch has all its passes before the next one begins. With several, passes of different batches
    alternate. The number of passes grows from 1 with the first batches, as in RLlib, so that slots do not end together.
    """

    def __init__(self, num_slots: int, num_passes: int) -> None:
        self._slots: list[_TrainBatch | None] = [None] * num_slots
        self._num_passes = num_passes
        self._passes_of_next = 1 if num_slots > 1 else num_passes
        self._turn = 0

    @property
    def needs_batch(self) -> bool:
        """Whether the slot whose turn it is needs a new train batch."""
        slot = self._slots[self._turn]
        return slot is None or slot.passes_left == 0

    def fill(self, parts: Sequence[AgedRows]) -> None:
        """Put a new train batch into the slot that needs one."""
        self._slots[self._turn] = _TrainBatch(list(parts), self._passes_of_next)
        self._passes_of_next = min(self._passes_of_next + 1, self._num_passes)

    def take(self, oldest_version: int) -> tuple[list[AgedRows], int]:
        """Return the batch whose turn it is without fragments older than ``oldest_version``, for this and later passes.

        Also return how many of its steps were dropped before their first pass.
        """
        slot = self._slots[self._turn]
        assert slot is not None
        kept = [part for part in slot.parts if part.version >= oldest_version]
        num_dropped = sum(part.num_steps for part in slot.parts if part.version < oldest_version) if slot.is_new else 0
        slot.parts, slot.is_new = kept, False
        slot.passes_left = slot.passes_left - 1 if kept else 0
        self._turn = (self._turn + 1) % len(self._slots)
        return kept, num_dropped

    def state(self) -> dict[str, Any]:
        """Return the batches with passes left, and whose turn it is."""
        slots = [
            None
            if slot is None or not slot.passes_left
            else [[each.state() for each in slot.parts], slot.passes_left, slot.is_new]
            for slot in self._slots
        ]
        return {"slots": slots, "turn": self._turn, "passes_of_next": self._passes_of_next}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, if this ring has as many slots."""
        if len(state["slots"]) != len(self._slots):
            return
        for index, slot in enumerate(state["slots"]):
            if slot is not None:
                parts, passes_left, is_new = slot
                self._slots[index] = _TrainBatch([AgedRows.from_state(each) for each in parts], passes_left, is_new)
        self._turn = state["turn"]
        self._passes_of_next = min(state["passes_of_next"], self._num_passes)


class PolicyLags:
    """The ages of the policies whose steps are learned, in updates, since the last ``drain``."""

    def __init__(self) -> None:
        self._steps_of: Counter[int] = Counter()

    def add(self, lag: int, num_steps: int) -> None:
        """Count steps of a policy that was ``lag`` updates old when they were learned."""
        self._steps_of[lag] += num_steps

    def drain(self) -> dict[str, float]:
        """Return mean, 95th percentile and maximum over all steps, and forget them; 0 without steps."""
        lags = np.array(sorted(self._steps_of), np.int64)
        steps = np.array([self._steps_of[lag] for lag in lags.tolist()], np.int64)
        self._steps_of.clear()
        if not len(lags):
            return {"mean": 0.0, "p95": 0.0, "max": 0.0}
        reached = steps.cumsum() >= 0.95 * steps.sum()
        return {
            "mean": float((lags * steps).sum() / steps.sum()),
            "p95": float(lags[reached.argmax()]),
            "max": float(lags[-1]),
        }


@dataclass(frozen=True)
class AsyncSamplesConfig:
    """How train batches are made of fragments, and how old these may be."""

    train_batch_size: int
    """Least env steps of a train batch; 1: each fragment is one."""
    steps_per_call: int
    """Env steps of a worker's call, with those that reset an env: what its fragment counts as at least."""
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


class AsyncSamplesOptimizer(SourceOptimizer):
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
        super().__init__(pool, source)
        self._runner = learner_runner
        self._config = config
        self._publisher = WeightPublisher(source, learner_runner, 0.0, 0, min_updates=config.broadcast_interval)
        self._collected: deque[AgedRows] = deque()
        self._ring = BatchRing(config.num_slots, config.num_passes)
        self._old = OldFragments(config.replay_proportion, config.num_replay_slots, rng)
        self._num_queued = learner_runner.num_updates
        self._num_steps_dropped = 0
        self._lags = PolicyLags()
        self._learner_time = LearnerTime(learner_runner)

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
        if not self._is_full and (self._ring.needs_batch or not self._runner.learns_in_step):
            for sample in self._source.poll(self.counters.num_steps_sampled, self._num_wanted()):
                self._collect(sample)
            self._runner.observe_progress(self.counters.num_steps_sampled)
        self._feed_learner()
        self._count_outputs()
        self._publisher.publish()

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
            "published": self._published(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._collected = deque(AgedRows.from_state(part) for part in state["collected"])
        self._ring.load(state["ring"])
        self._old.load(state["old_fragments"])
        self._num_steps_dropped = state["num_steps_dropped"]
        self._runner.last_stats = state["learner_stats"]
        if published := state.get("published"):
            self._publisher.publish_again(WeightsSnapshot(**published))

    def stats(self) -> dict[str, Any]:
        time_share = self._learner_time.shares(self._stopwatch.drain().elapsed_s)
        return {
            **self._runner.stats(),
            **self._source_figures(),
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
        super().stop()

    def _published(self) -> dict[str, Any] | None:
        """Return the weights with which workers act, if the learner, which learns in a step, has newer ones."""
        older = self._publisher.newest
        if not self._runner.learns_in_step or older is None or older.version == self.num_updates:
            return None
        return {"version": older.version, "weights": dict(older.weights)}

    @property
    def _is_full(self) -> bool:
        """Whether a complete train batch waits for room, so that no more samples are taken."""
        return self._num_missing() <= 0

    def _num_missing(self) -> int:
        """Return how many steps the next train batch still needs."""
        return self._config.train_batch_size - sum(part.counts_as for part in self._collected)

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
        self._count(info, self.num_updates)
        if rows is not None:
            new = AgedRows.of(rows, info.weights_version, self._config.steps_per_call)
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
            num_steps += parts[-1].counts_as
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
