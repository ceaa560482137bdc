"""The protocol of all optimizers, and the figures they tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlexp.replay.shard import ShardStats
from rlexp.rollout.worker import FragmentInfo


@dataclass
class Counters:
    """What has happened since the training began; part of every checkpoint."""

    num_steps_sampled: int = 0
    """Env steps that workers took."""
    num_steps_trained: int = 0
    """Rows in SGD batches."""


@dataclass(frozen=True)
class OptimizerStats:
    """How the data path does, at the end of an iteration."""

    num_weight_syncs: int
    num_worker_restarts: int
    shards: tuple[ShardStats, ...]
    learner_queue_size: int
    learner_queue_capacity: int
    learner_wait_share: float
    """Share of the time since the last call that the learner waited for data."""
    learner_time_share: Mapping[str, float]
    """Shares of that time by what the learner's thread did."""
    weight_age: float
    """Updates that the acting weights are behind the learner's, mean over the fragments since the last call."""
    bottleneck: str
    """What limits the training: ``workers``, ``replay`` or ``learner``."""
    learner: Mapping[str, float]
    """The learner's own figures, from its last update."""
    timing_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the optimizer's thread since the last call, by movement."""


class PolicyOptimizer(Protocol):
    """Moves experience; owned and stepped by an agent, in one thread."""

    counters: Counters

    def step(self) -> None:
        """Move on by one round; returns within a bounded time, also when nothing has arrived."""
        ...

    def drain_infos(self) -> list[FragmentInfo]:
        """Return what was told about the batches since the last call."""
        ...

    def drain_events(self) -> list[str]:
        """Return what happened to workers and shards since the last call that a user should know, a sentence each."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Hold the learner between two updates for the ``with`` body, with every counter up to date."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what else the next steps depend on, beside counters, learner, replay and source."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned; call it where replay was filled, before the first step."""
        ...

    def replay_bytes(self) -> int:
        """Return the bytes of all shards once they are full, as far as what they hold tells."""
        ...

    def replay_states(self) -> list[dict[str, Any]]:
        """Return what each replay shard holds, as ``ReplayShard.state`` does; arrays are to be read before a step.

        Raises ActorLostError, now or when they are read, where a shard is lost: an empty one is in its place then.
        """
        ...

    def load_replay_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the shards with what ``replay_states`` returned; call before the first step.

        Raises CheckpointError, with every shard empty, where the states are of other shards.
        """
        ...

    def stats(self) -> OptimizerStats:
        """Return how the data path did since the last call."""
        ...

    def stop(self) -> None:
        """Stop threads and workers; idempotent."""
        ...
