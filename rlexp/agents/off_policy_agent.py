"""Agents that learn from replay: its shards, its part of checkpoints, and the importance-sampling exponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from rlexp.agents.agent import Agent, CheckpointArrays
from rlexp.agents.workers import WorkerLinks
from rlexp.config.keys.common import MOST_CHECKPOINTED_BYTES
from rlexp.config.keys.replay_keys import ReplayKeys
from rlexp.errors import CheckpointError
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer, RowsOfShard
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.policy_optimizer import InlineLearnerRunner, ReplayOptimizer
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.policy import Learner
from rlexp.replay import ReplayConfig, ReplayShard, split_evenly
from rlexp.rollout.source import SampleSource
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule, derive_seed
from rlexp.states import AnyArray, join_state, split_state

BOARD_LEARNER_QUEUE = 4
"""Batches that wait for the learner, if actors join over a board."""


@runtime_checkable
class HasShortUpdates(Learner, Protocol):
    """A learner whose updates may be so short that a thread of its own would not help."""

    def has_short_updates(self, num_rows: int) -> bool:
        """Return whether an update of ``num_rows`` is mostly Python calls."""


ReplayKeysT = TypeVar("ReplayKeysT", bound=ReplayKeys)


class OffPolicyAgent(Agent[ReplayKeysT]):
    """An agent whose optimizer owns replay; by default one shard in the learner's process, in turn with it."""

    optimizer: ReplayOptimizer
    target_counts_trained = False
    """Whether trained steps decide when the target network is updated; otherwise sampled steps do."""

    def make_source(self) -> SampleSource:
        # Workers sample during the update, and get its weights with their next call.
        return self.place_workers(WorkerLinks(queue_depth=1, max_weight_sync_delay=1))

    def make_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        if self.board is not None:
            return self._make_board_optimizer(learner, source)
        config, shard = self.config, self.make_shard()
        pacing = Pacing(config.training_intensity, config.train_batch_size)
        round_size = max(config.num_workers, 1)
        return SyncReplayOptimizer(
            self.pool, source, shard, learner, round_size, self.beta_schedule(), pacing, config.replay.steps_per_row
        )

    def waits_for(self) -> str:
        return f"learning starts at {self.config.learning_starts:,} rows" if self.config.learning_starts else ""

    def make_shard(self) -> ReplayShard:
        """Return the whole replay as one shard."""
        return ReplayShard(self.replay_config(1), derive_seed(self.stream_seed, "replay", 0))

    def stores_replay(self) -> bool:
        """Return whether checkpoints include replay, which may depend on its size."""
        given = self.config.checkpoint_replay
        return self.optimizer.replay_bytes() <= MOST_CHECKPOINTED_BYTES if given is None else given

    def beta_schedule(self) -> LinearSchedule:
        """Return the importance-sampling exponent as a function of trained steps."""
        keys = self.config
        return LinearSchedule(
            keys.prioritized_replay_beta,
            keys.resolved_final_prioritized_replay_beta,
            keys.resolved_beta_annealing_timesteps,
        )

    def replay_config(self, num_shards: int) -> ReplayConfig:
        """Return the config of one of ``num_shards`` shards."""
        keys, steps = self.config, self.config.replay.steps_per_row
        return ReplayConfig(
            capacity=split_evenly(keys.buffer_size, num_shards * steps),
            learning_starts=split_evenly(keys.learning_starts, num_shards * steps),
            train_batch_size=split_evenly(keys.train_batch_size, steps),
            prioritized=keys.prioritized_replay,
            alpha=keys.prioritized_replay_alpha,
            eps=keys.prioritized_replay_eps,
            storage=keys.replay.storage,
            normalization=keys.importance_weight_normalization,
        )

    def add_to_checkpoint(self, arrays: CheckpointArrays, state: dict[str, Any]) -> None:
        if self.stores_replay():
            replay_arrays, state["replay"] = split_shard_states(self.optimizer.replay_states())
            arrays.update(replay_arrays)

    def restore_optimizer(self, state: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
        """Fill replay; without it, the rest of the optimizer's state also starts anew."""
        if "replay" not in state:
            self.add_event("replay starts empty: the checkpoint has none; checkpoint_replay: true stores it")
            return
        try:
            self.optimizer.load_replay_states(join_shard_states(arrays, state["replay"]))
        except CheckpointError as error:
            self.add_event(f"replay starts empty: {error.message}")
            return
        super().restore_optimizer(state, arrays)

    def _make_board_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        """Return the optimizer of Ape-X with one shard in this process: rounds would wait for the network."""
        config = self.config
        # As without a board, a batch for each round; here each fragment is a round.
        intensity = config.training_intensity or config.train_batch_size / self._steps_per_fragment
        self.add_event(
            f"with a board, samples and updates go side by side; training_intensity {intensity:g} holds them together"
        )
        return AsyncReplayOptimizer(
            self.pool,
            source,
            ReplayShards(self.pool, lambda index, attempt: self.pool.place("replay", None, self.make_shard), 1),
            self._make_board_runner(learner),
            DataPathConfig(
                replay_depth=BOARD_LEARNER_QUEUE,
                store_depth=self.num_players,
                beta=self.beta_schedule(),
                steps_per_row=config.replay.steps_per_row,
            ),
            Pacing(intensity, config.train_batch_size),
            np.random.default_rng(derive_seed(self.stream_seed, "routing")),
        )

    @property
    def _steps_per_fragment(self) -> int:
        return self.config.fragment_length * self.config.num_envs_per_worker

    def _make_board_runner(self, learner: Learner) -> LearnerRunner[RowsOfShard]:
        """Return the learner's runner: a thread, unless it and the optimizer's would only take turns in Python."""
        if isinstance(learner, HasShortUpdates) and learner.has_short_updates(self.config.train_batch_size):
            return InlineLearnerRunner(learner, BOARD_LEARNER_QUEUE)
        return LearnerThread(learner, BOARD_LEARNER_QUEUE)


def split_shard_states(
    states: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, AnyArray]], list[dict[str, Any]]]:
    """Return a group of arrays per shard, ``replay_0`` and so on, and the values of each shard's state."""
    split = [split_state(state) for state in states]
    return {f"replay_{index}": arrays for index, (arrays, _) in enumerate(split)}, [values for _, values in split]


def join_shard_states(
    groups: Mapping[str, Mapping[str, Array]], values: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the states that ``split_shard_states`` split; their arrays are the arrays in ``groups``, not copies."""
    return [join_state(groups[f"replay_{index}"], each) for index, each in enumerate(values)]
