"""Stage 2 of the data path in DQN (Mnih et al. 2015): one round of samples, then one update, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rlexp.cluster.pool.pool import GET_TIMEOUT_S, ArgumentLostError, TaskPool
from rlexp.errors import CheckpointError
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.policy_optimizer import STEP_TIMEOUT_S, SourceOptimizer, replay_figures
from rlexp.policy import HasLiveWeights, Learner, LiveWeights, Weights
from rlexp.replay.shard import ReplayShard
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.source import LocalWorkers, Sample, SampleSource
from rlexp.sample_batch import KEYS
from rlexp.schedules import LinearSchedule


class SyncReplayOptimizer(SourceOptimizer):
    """Alternates between a round of samples and an update, all in one thread.

    A round has one batch per worker, so that trained / sampled steps is
    ``train_batch_size / (sample_batch_size * num_envs_per_worker * max(num_workers, 1))``. It is a little more with
    short episodes, since a reset is not an env step.
    """

    at_rest = True  # each fragment is stored when it arrives

    def __init__(
        self,
        pool: TaskPool,
        source: SampleSource,
        shard: ReplayShard,
        learner: Learner,
        round_size: int,
        beta: LinearSchedule,
        pacing: Pacing,
        steps_per_row: int = 1,
    ) -> None:
        """``round_size`` batches make a round; ``beta`` is the importance-sampling exponent over trained steps.

        If ``pacing`` holds an intensity, the sampled steps decide how often to learn, instead of the rounds. A row
        counts as ``steps_per_row`` trained steps.
        """
        super().__init__(pool, source)
        self._shard = shard
        self._learner = learner
        self._round_size = round_size
        self._beta = beta
        self._pacing = pacing
        self._steps_per_row = steps_per_row
        self._due = 0
        self._last_stats: Mapping[str, float] = {}
        self._live_weights = _live_weights(learner, source)

    @property
    def num_updates(self) -> int:
        return self._learner.num_updates

    def start(self) -> None:
        """Publish the first weights; nobody has weights yet."""
        self._source.publish(self._learner.num_updates, self._newest_weights())

    def step(self, should_stop: ShouldStop = never) -> None:
        """Take the samples that have arrived; learn once per complete round."""
        with self._stopwatch.lap("workers"):
            samples = self._source.poll(self.counters.num_steps_sampled)
            if not samples:
                self._source.wait(STEP_TIMEOUT_S)
        with self._stopwatch.lap("replay"):
            for sample in samples:
                self._store(sample)
        with self._stopwatch.lap("learner"):
            self._learn_when_due()

    def paused(self) -> AbstractContextManager[Learner]:
        return nullcontext(self._learner)

    def state(self) -> dict[str, Any]:
        return {"pacing": self._pacing.state(), "due": self._due, "learner_stats": dict(self._last_stats)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._pacing.load(state["pacing"])
        self._due = state["due"]
        self._last_stats = state["learner_stats"]

    def replay_bytes(self) -> int:
        return self._shard.stats().nbytes

    def replay_states(self) -> list[dict[str, Any]]:
        return [self._shard.state()]

    def load_replay_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        if len(states) != 1:
            raise CheckpointError(f"a replay state of {len(states)} shards does not fit one")
        self._shard.load(states[0])

    def stats(self) -> dict[str, Any]:
        lap = self._stopwatch.drain()
        time_share = {part: seconds / max(lap.elapsed_s, 1e-9) for part, seconds in lap.parts_s.items()}
        return {
            "num_updates": self.num_updates,
            **self._learner.stats(),
            **self._source_figures(),
            **replay_figures([self._shard.stats()]),
            "num_fragments_lost": self._num_fragments_lost,
            "learner_queue_size": 0,
            "learner_queue_capacity": 0,
            "learner_wait_share": 1.0 - time_share.get("learner", 0.0),
            "learner_time_share": time_share,
            "weight_age": self._weight_age.drain(),
            "bottleneck": max(lap.parts_s, key=lap.parts_s.__getitem__, default="workers"),
            "learner": dict(self._last_stats),
        }

    def _store(self, sample: Sample) -> None:
        self._due += 1
        self._count(sample.info, self.num_updates)
        if sample.info.num_rows:
            try:
                self._shard.add_batch(self._pool.get(sample.batch, GET_TIMEOUT_S))
            except ArgumentLostError:  # lost with its node; its reported steps count all the same
                self._num_fragments_lost += 1

    def _learn_when_due(self) -> None:
        rounds, self._due = divmod(self._due, self._round_size)
        if not self._pacing.holds:
            for _ in range(rounds):
                self._learn()
        counters = self.counters
        while self._pacing.owed(counters.num_steps_sampled, counters.num_steps_trained) >= 1.0:
            self._learn()

    def _learn(self) -> None:
        batch = self._shard.replay(self._beta.value(self.counters.num_steps_trained))
        if batch is None:
            self._pacing.end()
            return
        self._pacing.begin(self.counters.num_steps_sampled, self.counters.num_steps_trained)
        self._learner.observe_progress(self.counters.num_steps_sampled)
        result = self._learner.learn_on_batch(batch)
        self._last_stats = result.stats
        if result.td_errors is not None:
            self._shard.update_priorities(batch[KEYS], result.td_errors)
        self.counters.num_steps_trained += batch.count * self._steps_per_row
        self._publish_weights()

    def _publish_weights(self) -> None:
        if self._source.weights_wanted():
            self._source.publish(self._learner.num_updates, self._newest_weights())

    def _newest_weights(self) -> Weights:
        return self._learner.get_weights() if self._live_weights is None else self._live_weights


def _live_weights(learner: Learner, source: SampleSource) -> LiveWeights | None:
    """Return the weights in the learner's own memory if the workers act in its thread, between two updates."""
    if isinstance(source, LocalWorkers) and isinstance(learner, HasLiveWeights):
        return learner.live_weights()
    return None
