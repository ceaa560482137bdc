"""Ape-X (Horgan et al. 2018): DQN with many workers, sharded replay and an asynchronous learner; RLlib's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlexp.config.dqn import DQNConfig, OptimizerConfig
from rlexp.config.fields import Conflict, Count, CountOrZero, PositiveFraction, PositiveOrZero


class AsyncReplayOptimizerConfig(OptimizerConfig):
    """How experience moves in Ape-X: workers, replay shards and the learner, none waiting for another."""

    max_weight_sync_delay: Count = 400
    """Env steps that a worker samples before it gets new weights: small keeps it close to the learner's policy, large
    saves sending the network."""

    num_replay_buffer_shards: Count = 4
    """Processes that replay is split over, so that storing and drawing do not wait for one another."""

    debug: bool = False
    """Report the seconds that the driver spends on each movement among the results, as ``info/timing_s``."""

    sample_queue_depth: Count = 2
    """Calls to sample in flight per worker. With 2 a worker starts the next fragment while the last one is stored; more
    would only make its weights older."""

    replay_queue_depth: Count = 4
    """Batches asked for ahead, per replay shard. Covers the way of a batch to the learner; more would only make its
    priorities older."""

    learner_queue_depth: Count = 16
    """Batches that wait for the learner at most. Smooths uneven shards; more would hold older priorities and memory.

    With ``num_workers: 0`` none waits: the learner takes turns with the worker, one update for each fragment, or as
    many as ``training_intensity`` asks for.
    """


class ApexConfig(DQNConfig):
    """What is under ``config:`` for ``run: APEX``."""

    num_workers: CountOrZero = 32
    sample_batch_size: Count = 50
    train_batch_size: Count = 512
    timesteps_per_iteration: CountOrZero = 25_000
    min_iter_time_s: PositiveOrZero = 30.0
    per_worker_exploration: bool = True
    learning_starts: CountOrZero = 50_000
    buffer_size: Count = 2_000_000
    worker_side_prioritization: bool = True
    n_step: Count = 3
    target_network_update_freq: Count = 500_000

    replay_storage: Literal["auto", "actors", "local", "shared_memory"] = "auto"
    """Where the replay shards are: ``actors``, each in a process of its own; ``local``, in the learner's process, which
    sends nothing and takes its core for it; ``shared_memory``, there too, but workers write their transitions straight
    into it instead of sending them. ``auto``: actors where this machine has a core for each of them beside those of the
    workers and the learner, else local. With ``num_workers: 0`` local, so that the same file and seed give the same
    weights.

    ``shared_memory`` wants Linux and all workers on the learner's machine. Each of them keeps its own newest
    transitions, an equal share of ``buffer_size``, with whole observations, uncompressed: of stacked frames that is
    eight times the memory.
    With ``num_workers: 0`` there is nothing to share, and it is ``local``."""

    final_prioritized_replay_beta: PositiveFraction | None = None
    """Exponent of the importance-sampling weights at the end of its schedule. Null: constant, as in Ape-X."""

    optimizer: AsyncReplayOptimizerConfig = AsyncReplayOptimizerConfig()
    """How experience moves."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then shards that would hold nothing, and rows that fit into no ring."""
        yield from super().conflicts()
        if self.optimizer.num_replay_buffer_shards > self.buffer_size:
            yield Conflict(
                ("optimizer.num_replay_buffer_shards", "buffer_size"),
                f"optimizer.num_replay_buffer_shards is {self.optimizer.num_replay_buffer_shards}, "
                f"more than buffer_size holds: {self.buffer_size}",
            )
        if self.replay_storage == "shared_memory" and self.batch_mode == "complete_episodes":
            yield Conflict(
                ("replay_storage", "batch_mode"),
                f"{self.said('replay_storage')}, which needs fragments of a known length, "
                f"but {self.said('batch_mode')}",
                "use batch_mode: truncate_episodes, or another replay_storage",
            )
