"""The protocols of all optimizers, and the stats that several of them report.

``InlineLearnerRunner`` learns in the optimizer's own thread, which makes training repeatable and short updates faster.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.cluster.pool.pool import TaskPool
from rlexp.metrics import Mean, Stopwatch
from rlexp.optimizers.learner_thread import LearnerOutput, LearnerRunner, OriginT
from rlexp.policy import Learner
from rlexp.replay.shard import ShardStats
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import SampleSource
from rlexp.sample_batch import SampleBatch

STEP_TIMEOUT_S = 0.05
"""Seconds after which a step returns even if nothing arrived, so that its caller can check the time."""


@dataclass
class Counters:
    """Counts of env steps and trained rows since the training began; part of every checkpoint."""

    num_steps_sampled: int = 0
    """Env steps that workers took."""
    num_steps_trained: int = 0
    """Steps in SGD batches: their rows, or several for each sequence."""


class PolicyOptimizer(Protocol):
    """Moves experience; owned and stepped by an agent, in one thread."""

    counters: Counters

    @property
    def at_rest(self) -> bool:
        """Whether an iteration may end now: nothing is incomplete, such as a train batch collected in part."""

    @property
    def num_updates(self) -> int:
        """Number of learner updates since the training began; an update that is just ending may not be counted."""

    def start(self) -> None:
        """Publish the first weights, and start the threads beside ``step``."""

    def step(self, should_stop: ShouldStop = never) -> None:
        """Do one round. Return within a bounded time even if nothing arrived, and when ``should_stop`` returns True.

        A round that ends because of ``should_stop`` loses nothing that was sampled.
        """

    def drain_infos(self) -> list[SampleInfo]:
        """Return the reports about samples since the last call."""

    def drain_events(self) -> list[str]:
        """Return the events of workers and shards since the last call that a user should know, a sentence each."""

    def paused(self) -> AbstractContextManager[Learner]:
        """Hold the learner between two updates for the ``with`` body, which may read it; every counter is up to date.

        The optimizer owns the learner: nobody else calls it, except in this body.
        """

    def state(self) -> dict[str, Any]:
        """Return what else the next steps depend on, except counters, learner, replay and source."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; call it after replay was filled and before the first step."""

    def stats(self) -> Figures:
        """Return the stats of the data path since the last call, with the learner's stats under ``learner``.

        Every optimizer reports ``num_updates``, ``learner_wait_share`` and ``bottleneck``.
        """

    def stop(self) -> None:
        """Stop threads and workers; idempotent."""


class ReplayOptimizer(PolicyOptimizer, Protocol):
    """An optimizer with replay, which checkpoints may hold."""

    def replay_bytes(self) -> int:
        """Return the estimated bytes of all shards once they are full."""

    def replay_states(self) -> list[dict[str, Any]]:
        """Return what each replay shard holds, as ``ReplayShard.state`` does; read the arrays before the next step.

        Raises ActorLostError, now or when they are read, if a shard is lost; an empty one has replaced it.
        """

    def load_replay_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the shards with what ``replay_states`` returned; call before the first step.

        Raises CheckpointError at the first state that is of another shard.
        """


class SourceOptimizer:
    """What our optimizers share: a source of samples, and counters and reports of what came from it."""

    def __init__(self, pool: TaskPool, source: SampleSource) -> None:
        self.counters = Counters()
        self._pool, self._source = pool, source
        self._infos: list[SampleInfo] = []
        self._num_fragments_lost = 0
        self._weight_age = Mean()
        self._stopwatch = Stopwatch()

    def drain_infos(self) -> list[SampleInfo]:
        infos, self._infos = self._infos, []
        return infos

    def drain_events(self) -> list[str]:
        return self._source.drain_events()

    def stop(self) -> None:
        self._source.stop()

    def _count(self, info: SampleInfo, num_updates: int) -> None:
        """Count a sample that has arrived after so many updates."""
        self._infos.append(info)
        self._weight_age.add(num_updates - info.weights_version)
        self.counters.num_steps_sampled += info.num_env_steps

    def _source_figures(self) -> dict[str, Any]:
        """Return the source's counters."""
        source = self._source
        return {"num_weight_syncs": source.num_weight_syncs, "num_worker_restarts": source.num_worker_restarts}


def replay_figures(shards: Sequence[ShardStats]) -> dict[str, Any]:
    """Return how full replay is, and the number of priorities that came too late."""
    fills = [shard.size / shard.capacity for shard in shards]
    return {
        "replay_fill": sum(fills) / len(fills),
        "replay_fill_per_shard": fills,
        "num_stale_priorities": sum(shard.num_stale_priorities for shard in shards),
    }


class InlineLearnerRunner(LearnerRunner[OriginT]):
    """A LearnerRunner that learns when its outputs are taken; owned by one optimizer.

    Batches wait only within a step of the optimizer, so a checkpoint needs to hold none.
    """

    learns_in_step = True
    queue_time_s = 0.0

    def __init__(self, learner: Learner, queue_capacity: int = 1, copy_interval: int | None = None) -> None:
        """Let ``queue_capacity`` batches be drawn before the first one's priorities are known."""
        super().__init__(learner, queue_capacity, copy_interval)
        self._batches: deque[tuple[OriginT, SampleBatch]] = deque()
        self._weights_requested = False

    def start(self) -> None:
        return None

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
            outputs.append(LearnerOutput(origin, batch.count, result))
        if outputs and (self._weights_requested or self._is_copy_due):
            self._weights_requested = False
            self._snapshot = self._copied_weights()
        return outputs

    def request_weights(self) -> None:
        self._weights_requested = True

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        yield self._learner

    def stop(self) -> None:
        return None


Figures = Mapping[str, Any]
"""Numbers, words or mappings, by their names under ``info`` in a row of results."""
