"""Stage 2 of the data path: Ape-X (Horgan et al. 2018), where sampling, replay and learning run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, Actor, ActorLostError, ArgumentLostError, Completed, Lane, TaskPool
from rlexp.optimizers.learner_thread import BUSY_WAIT_SHARE, LearnerRunner, LearnerTime
from rlexp.optimizers.pacing import DataPathConfig, Pacing, WeightPublisher
from rlexp.optimizers.policy_optimizer import STEP_TIMEOUT_S, SourceOptimizer, replay_figures
from rlexp.optimizers.replay_shards import ReplayShards, StoreCalls
from rlexp.policy import Learner
from rlexp.replay.shard import ReplayShard
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.gatherer import GatheredInfo
from rlexp.rollout.source import Sample, SampleSource
from rlexp.sample_batch import KEYS, Array, SampleBatch

QUEUE_SHARE_WAITED = 0.5
"""Most that a step waits, as a share of the learner's queued work, since replay in this process ends no wait."""


@dataclass(frozen=True, eq=False)
class RowsOfShard:
    """The place of a replayed batch's rows."""

    shard: Actor[ReplayShard]
    keys: Array


class AsyncReplayOptimizer(SourceOptimizer):
    """Keeps sample and replay calls in flight between a source, shards and a learner.

    Samples go from worker to shard by reference; only replayed batches pass through here, to the learner. No batch is
    dropped: a batch is requested only if the learner's queue has room. A failed shard or worker is replaced meanwhile,
    and a silent shard delays no other. A fragment that is lost with its node is counted, but its rows are missing.
    Owned by one agent, in one thread.
    """

    at_rest = True  # each fragment is stored when it arrives

    def __init__(
        self,
        pool: TaskPool,
        source: SampleSource,
        shards: ReplayShards,
        learner_runner: LearnerRunner[RowsOfShard],
        config: DataPathConfig,
        pacing: Pacing,
        rng: np.random.Generator,
    ) -> None:
        """Initialise; ``rng`` deals batches to shards."""
        super().__init__(pool, source)
        self._shards = shards
        self._learner_runner = learner_runner
        self._config = config
        self._pacing = pacing
        self._rng = rng
        self._store_calls = StoreCalls(pool, shards, config.store_depth, rng)
        self._replay_calls = Lane(pool)
        self._priority_calls = Lane(pool)
        self._replayed: deque[Completed[ReplayShard, SampleBatch | None]] = deque()
        self._arrived: deque[Sample] = deque()  # reports of gatherers that are not counted yet
        self._publisher = WeightPublisher(source, learner_runner, config.min_weight_publish_s, config.num_gatherers)
        self._learner_time = LearnerTime(learner_runner)

    @property
    def num_updates(self) -> int:
        return self._learner_runner.num_updates

    def start(self) -> None:
        """Publish the first weights and start the learner."""
        self._publisher.publish()
        self._learner_runner.start()

    def step(self, should_stop: ShouldStop = never) -> None:
        """Wait for an arrival, then do the four phases of Ape-X."""
        with self._stopwatch.lap("wait"):
            timeout = self._longest_wait_s()
            if not self._source.wait(timeout):
                self._learner_runner.wait_for_output(timeout)
        with self._stopwatch.lap("store_samples"):
            self._store_samples()
        with self._stopwatch.lap("feed_learner"):
            self._feed_learner()
        with self._stopwatch.lap("return_priorities"):
            self._return_priorities()
        with self._stopwatch.lap("publish_weights"):
            self._publisher.publish()

    def drain_events(self) -> list[str]:
        return super().drain_events() + self._shards.drain_events()

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        with self._learner_runner.paused() as learner:
            self._return_priorities()
            yield learner

    def state(self) -> dict[str, Any]:
        return {
            "pacing": self._pacing.state(),
            "turns": self._shards.turns(),
            "routing": self._rng.bit_generator.state,
            "learner_stats": dict(self._learner_runner.last_stats),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._pacing.load(state["pacing"])
        self._shards.load_turns(state["turns"])
        self._rng.bit_generator.state = state["routing"]
        self._learner_runner.last_stats = state["learner_stats"]

    def replay_bytes(self) -> int:
        return sum(shard.nbytes for shard in self._shards.stats())

    def replay_states(self) -> list[dict[str, Any]]:
        return self._shards.states()

    def load_replay_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        self._shards.load(states)

    def stats(self) -> dict[str, Any]:
        lap = self._stopwatch.drain()
        time_share = self._learner_time.shares(lap.elapsed_s)
        return {
            **self._learner_runner.stats(),
            **self._source_figures(),
            **replay_figures(self._shards.stats()),
            "num_fragments_lost": self._num_fragments_lost,
            "learner_wait_share": time_share["wait"],
            "learner_time_share": time_share,
            "weight_age": self._weight_age.drain(),
            "bottleneck": self._bottleneck(time_share["wait"]),
            **({"timing_s": lap.parts_s} if self._config.reports_timing else {}),
        }

    def stop(self) -> None:
        self._learner_runner.stop()
        super().stop()

    def _store_samples(self) -> None:
        self._num_fragments_lost += self._check(self._store_calls.lane)
        self._shards.place_replacements()
        if not self._may_store():
            return
        self._arrived = self._arrived or deque(self._source.poll(self.counters.num_steps_sampled))
        while self._arrived:
            sample = self._arrived.popleft()
            self._store(sample)
            if isinstance(sample.info, GatheredInfo) and not self._may_store():
                break  # Each report is about thousands of rows; the others count when training has come so far.
        self._learner_runner.observe_progress(self.counters.num_steps_sampled)

    def _may_store(self) -> bool:
        sampled, trained = self.counters.num_steps_sampled, self.counters.num_steps_trained
        return self._store_calls.has_room and self._pacing.may_sample(sampled, trained)

    def _store(self, sample: Sample) -> None:
        self._count(sample.info, self.num_updates)
        if isinstance(sample.info, GatheredInfo):  # a gatherer has stored the rows
            self._num_fragments_lost += sample.info.num_fragments_lost
            for index in sample.info.fed:
                self._shards.feed(self._shards[index])
        elif sample.info.num_rows:
            self._store_calls.store(sample)

    def _longest_wait_s(self) -> float:
        sampled, trained = self.counters.num_steps_sampled, self.counters.num_steps_trained
        learns_now = self._learner_runner.learns_in_step and self._pacing.owed(sampled, trained) >= 1.0
        if learns_now or (self._source.has_waiting and self._may_store()):
            return 0.0
        queued_s = self._learner_runner.queue_time_s
        return min(STEP_TIMEOUT_S, QUEUE_SHARE_WAITED * queued_s) if queued_s else STEP_TIMEOUT_S

    def _feed_learner(self) -> None:
        self._queue_batches()
        self._ask_for_batches()
        self._queue_batches()  # a shard in this process has answered already

    def _queue_batches(self) -> None:
        """Queue the replayed batches. A silent shard may answer when the queue has no room any more."""
        for call in self._replay_calls.completed():
            self._shards.answered(call.actor, self._replay_calls.in_flight(call.actor) > 0)
            self._replayed.append(call)
        while self._replayed and self._learner_runner.queue_size < self._learner_runner.queue_capacity:
            self._queue_batch(self._replayed.popleft())

    def _queue_batch(self, call: Completed[ReplayShard, SampleBatch | None]) -> None:
        with self._failures_handled(call.actor):
            batch = self._pool.get(call.ref, GET_TIMEOUT_S)
            if batch is None:  # still below learning_starts: ask again after the shard got more rows
                self._shards.starve(call.actor)
                if self._shards.all_starved:
                    self._pacing.end()
            else:
                self._pacing.begin(self.counters.num_steps_sampled, self.counters.num_steps_trained)
                self._learner_runner.put(RowsOfShard(call.actor, batch[KEYS]), batch)

    def _ask_for_batches(self) -> None:
        beta, depth = self._config.beta.value(self.counters.num_steps_trained), self._config.replay_depth
        while self._batches_on_their_way() < self._learner_runner.queue_capacity and self._may_train():
            shard = self._shards.take_turn(lambda shard: self._replay_calls.in_flight(shard) < depth)
            if shard is None:
                return
            self._shards.asked(shard)
            self._replay_calls.submit(shard, ReplayShard.replay, beta)

    def _batches_on_their_way(self) -> int:
        """Return the batches that wait for the learner or come soon, without batches of a silent shard."""
        asked = (self._replay_calls.in_flight(shard) for shard in self._shards if not self._shards.is_silent(shard))
        return self._learner_runner.queue_size + len(self._replayed) + sum(asked)

    def _may_train(self) -> bool:
        sampled, trained = self.counters.num_steps_sampled, self.counters.num_steps_trained
        return self._pacing.may_train(sampled, trained, self._batches_on_their_way())

    def _return_priorities(self) -> None:
        self._check(self._priority_calls)
        for output in self._learner_runner.outputs():
            self.counters.num_steps_trained += output.num_rows * self._config.steps_per_row
            shard, keys = output.origin.shard, output.origin.keys
            td_errors = output.result.td_errors
            if td_errors is not None and shard in self._shards:
                self._priority_calls.submit(shard, ReplayShard.update_priorities, keys, td_errors)

    def _bottleneck(self, learner_wait_share: float) -> str:
        """Return ``learner`` if it is busy, ``workers`` if replay or pacing waits for samples, else ``replay``."""
        if learner_wait_share <= BUSY_WAIT_SHARE:
            return "learner"
        return "workers" if self._shards.all_starved or not self._may_train() else "replay"

    def _check(self, lane: Lane) -> int:
        """Raise the errors of calls whose results are not used. Return how many failed because an argument was lost."""
        return sum(not self._has_done(call) for call in lane.completed())

    def _has_done(self, call: Completed[ReplayShard, None]) -> bool:
        with self._failures_handled(call.actor):
            try:
                self._pool.get(call.ref, GET_TIMEOUT_S)
            except ArgumentLostError:  # the shard lives and keeps its rows
                return False
        return True

    @contextmanager
    def _failures_handled(self, shard: Actor[ReplayShard]) -> Iterator[None]:
        """Replace ``shard`` if it turns out to be lost in the ``with`` body, unless it has been already.

        A batch that is lost while the shard lives is asked for again.
        """
        try:
            yield
        except ArgumentLostError:
            return
        except ActorLostError as error:
            for lane in (self._store_calls.lane, self._replay_calls, self._priority_calls):
                lane.forget(shard)
            if shard in self._shards:
                self._shards.replace(shard, error)
