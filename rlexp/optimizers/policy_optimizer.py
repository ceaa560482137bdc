"""The protocols of all optimizers, and the figures that several of them report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.policy import Learner
from rlexp.replay.shard import ShardStats
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import SampleSource

Figures = Mapping[str, Any]
"""Numbers, words or mappings of them, by the names that they have under ``info`` in a row of results."""


@dataclass
class Counters:
    """What has happened since the training began; part of every checkpoint."""

    num_steps_sampled: int = 0
    """Env steps that workers took."""
    num_steps_trained: int = 0
    """Rows in SGD batches."""


class PolicyOptimizer(Protocol):
    """Moves experience; owned and stepped by an agent, in one thread."""

    counters: Counters

    @property
    def at_rest(self) -> bool:
        """Whether an iteration may end now: nothing is half done, such as a train batch collected in part."""
        ...

    @property
    def num_updates(self) -> int:
        """The learner's updates since the training began; one that ends just now may not be counted yet."""
        ...

    def start(self) -> None:
        """Publish the first weights, and start what runs beside ``step``."""
        ...

    def step(self, should_stop: ShouldStop = never) -> None:
        """Do one round; returns within a bounded time, also when nothing has arrived, and if ``should_stop`` says so.

        A round that ends because of ``should_stop`` loses nothing that was sampled.
        """
        ...

    def drain_infos(self) -> list[SampleInfo]:
        """Return the reports about the samples since the last call."""
        ...

    def drain_events(self) -> list[str]:
        """Return what happened to workers and shards since the last call that a user should know, a sentence each."""
        ...

    def paused(self) -> AbstractContextManager[Learner]:
        """Hold the learner between two updates for the ``with`` body, which may read it; every counter is up to date.

        The optimizer owns the learner: nobody else calls it, except in this body.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return what else the next steps depend on, beside counters, learner, replay and source."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; call it after replay was filled, before the first step."""
        ...

    def stats(self) -> Figures:
        """Return how the data path did since the last call, with the learner's figures under ``learner``.

        Every optimizer reports ``num_updates``, ``learner_wait_share`` and ``bottleneck``.
        """
        ...

    def stop(self) -> None:
        """Stop threads and workers; idempotent."""
        ...


class ReplayOptimizer(PolicyOptimizer, Protocol):
    """An optimizer with replay, which checkpoints may hold."""

    def replay_bytes(self) -> int:
        """Return the bytes of all shards once they are full, estimated from what they hold."""
        ...

    def replay_states(self) -> list[dict[str, Any]]:
        """Return what each replay shard holds, as ``ReplayShard.state`` does; read the arrays before the next step.

        Raises ActorLostError, now or when they are read, where a shard is lost: it was replaced by an empty one.
        """
        ...

    def load_replay_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the shards with what ``replay_states`` returned; call before the first step.

        Raises CheckpointError at the first state that is of another shard.
        """
        ...


def source_figures(source: SampleSource) -> dict[str, Any]:
    """Return what a source counts."""
    return {"num_weight_syncs": source.num_weight_syncs, "num_worker_restarts": source.num_worker_restarts}


def replay_figures(shards: Sequence[ShardStats]) -> dict[str, Any]:
    """Return how full replay is, and the priorities that came too late."""
    fills = [shard.size / shard.capacity for shard in shards]
    return {
        "replay_fill": sum(fills) / len(fills),
        "replay_fill_per_shard": fills,
        "num_stale_priorities": sum(shard.num_stale_priorities for shard in shards),
    }
