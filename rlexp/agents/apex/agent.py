"""Ape-X: the DQN agent with an asynchronous optimizer and sharded replay; no more differs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from rlexp.agents.apex.gatherers import groups_of, place_gatherers, worker_nodes
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.agents.iteration import Iteration
from rlexp.agents.torch.device import free_device_bytes, learner_device
from rlexp.agents.torch.device_frames import check_frames_fit, device_rows
from rlexp.agents.torch.process import LearnerThreads, trial_load
from rlexp.agents.workers import WorkerLinks, WorkerParts
from rlexp.cluster.pool import Actor, Resources, trial_group
from rlexp.cluster.room import available_cpus
from rlexp.cluster.room.shortfalls import frames_per_transition
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.trial import bundles_of
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer, RowsOfShard
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.policy_optimizer import Figures, InlineLearnerRunner, ReplayOptimizer
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.policy import Learner
from rlexp.replay import ReplayShard
from rlexp.replay.rows import Rows
from rlexp.replay.shared import RingSizes, SharedReplay
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.gatherer import GatheredWorkers
from rlexp.rollout.source import SampleSource
from rlexp.rollout.worker_spec import EACH_ALONE, MessageLimits
from rlexp.sample_batch import num_frames
from rlexp.schedules import derive_seed

FRAGMENTS_OF_MESSAGE = 4
"""Fragments that a worker sends at once, at most: each message costs the driver and the worker time of their own."""
BYTES_OF_MESSAGE = 96_000
"""Of rows that Ray returns with its answer: beyond 100 kB they go through its object store, which costs another one."""
SECONDS_OF_MESSAGE = 0.1
"""In which the fragments of a message are sampled: slow envs send each of theirs at once. A worker that shares its core
takes 20 ms for 400 steps of CartPole, so four of them fit."""


class ApexAgent(DQNAgent[ApexConfig]):
    """Distributed prioritized experience replay (Horgan et al. 2018)."""

    target_counts_trained = True

    def make_learner(self) -> DQNLearner:
        learner, config, space = super().make_learner(), self.config, self.observation_space
        if config.replay.on_device:
            assert space.shape is not None
            assert space.dtype is not None
            frame_bytes = math.prod(space.shape) * space.dtype.itemsize / num_frames(space.shape)
            needed = config.buffer_size * self._frames_per_row() * frame_bytes
            check_frames_fit(needed, free_device_bytes(config.num_gpus), config.buffer_size)
        self._learner, self._learner_threads = learner, self._make_learner_threads()
        return learner

    def make_source(self) -> SampleSource:
        settings = self.config.optimizer
        self._gathered = self._place_gatherers()
        if self._gathered is not None:
            return self.with_board(self._gathered)
        delay, message = settings.max_weight_sync_delay, self._message_limits()
        return self.place_workers(WorkerLinks(settings.sample_queue_depth, delay, shares_weights=True, message=message))

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        parts = super().worker_parts(worker_index, seed, num_threads)
        if self._shared is None:
            return parts
        routing_seed = derive_seed(self.stream_seed, "worker", worker_index, "routing")
        return replace(parts, row_writer=self._shared.writer(worker_index, routing_seed))

    def make_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        settings = self.config.optimizer
        config = DataPathConfig(
            replay_depth=settings.replay_queue_depth,
            store_depth=settings.sample_queue_depth * self.num_players,
            beta=self.beta_schedule(),
            reports_timing=settings.debug,
            min_weight_publish_s=settings.min_weight_publish_s,
            num_gatherers=0 if self._gathered is None else self._gathered.num_gatherers,
        )
        return AsyncReplayOptimizer(
            self.pool,
            source,
            ReplayShards(self.pool, self._place_shard, settings.num_replay_buffer_shards),
            self._make_learner_runner(learner),
            config,
            Pacing(self.config.training_intensity, self.config.train_batch_size),
            np.random.default_rng(derive_seed(self.stream_seed, "routing")),
        )

    def _make_learner_runner(self, learner: Learner) -> LearnerRunner[RowsOfShard]:
        """Return what learns: a thread; without other players the optimizer's own, so that runs are repeatable."""
        if self.config.num_workers == 0 and self.board is None:
            return InlineLearnerRunner(learner)
        return LearnerThread(learner, self.config.optimizer.learner_queue_depth)

    def _make_learner_threads(self) -> LearnerThreads | None:
        """Return what gives the learner the cores that its workers leave idle; None where they are not its workers.

        A learner without a thread of its own keeps its number: more threads would add in another order.
        """
        if self.config.num_gpus or self.config.num_workers == 0 or self.board is not None:
            return None
        fewest, num_workers = max(int(self.config.num_cpus_for_driver), 1), self._num_workers_here
        reserved = fewest + int(num_workers * self.config.num_cpus_per_worker)
        return LearnerThreads(fewest, min(available_cpus(), reserved), num_workers)

    def _report(self, iteration: Iteration, infos: list[SampleInfo]) -> dict[str, Any]:
        row = super()._report(iteration, infos)
        if self._learner_threads is not None:
            self._learner_threads.observe(trial_load(row, infos, self.config.train_batch_size))
            self._learner.num_threads = self._learner_threads.number
        return row

    def stats(self) -> Figures:
        """Return the parent's figures, and how many threads the learner has where that is decided while it runs."""
        threads = self._learner_threads
        return {**super().stats(), **({} if threads is None else {"num_learner_threads": threads.number})}

    @cached_property
    def _shared(self) -> SharedReplay | None:
        """The memory that workers in other processes write into, with ``replay_storage: shared_memory``."""
        config, settings = self.config, self.config.optimizer
        if config.replay_storage != "shared_memory" or config.num_workers == 0:
            return None
        sizes = RingSizes(
            capacity=self.replay_config(settings.num_replay_buffer_shards).capacity,
            num_rings=config.num_workers,
            # The fragments that a worker is asked for, and those that have come back and are about to be taken in:
            # with so much room no worker ever waits.
            headroom=2 * settings.sample_queue_depth * config.fragment_length * config.num_envs_per_worker,
        )
        return SharedReplay(settings.num_replay_buffer_shards, sizes)

    def _message_limits(self) -> MessageLimits:
        """Return which fragments go together where sampling waits for nobody.

        With an intensity workers wait for the learner, and what they have sampled in advance gets old meanwhile. A
        ring has room for single fragments.
        """
        if self.config.training_intensity is not None or self._shared is not None:
            return EACH_ALONE
        return MessageLimits(FRAGMENTS_OF_MESSAGE, BYTES_OF_MESSAGE, SECONDS_OF_MESSAGE)

    def _place_gatherers(self) -> GatheredWorkers | None:
        """Return the workers behind gatherers; None where shards are in this process, which alone can add rows."""
        if self._replays_here():
            return None
        groups = groups_of(self.config.optimizer.gatherers, *worker_nodes(self.config, trial_group()))
        if not groups:
            return None
        return place_gatherers(self.pool, self.config, self.spec_maker(), self.stream_seed, groups)

    def _place_shard(self, index: int, attempt: int) -> Actor[ReplayShard]:
        seed = derive_seed(self.stream_seed, "replay", index)
        shard = self.pool.place(
            f"replay-{index}",
            None if self._replays_here() else self._shard_resources(),
            ReplayShard,
            self.replay_config(self.config.optimizer.num_replay_buffer_shards),
            derive_seed(seed, "attempt", attempt) if attempt else seed,
            self._rows_of(index),
        )
        if self._gathered is not None:
            self._gathered.set_shard(index, shard)
        return shard

    def _shard_resources(self) -> Resources:
        """Return the driver's bundle, so that batches are not sent from another machine to the learner.

        A shard asks for no CPUs of it: Tune gives all of that bundle, those for shards included, to this process.
        """
        return Resources(cpus=0, gpus=0, bundle=bundles_of(self.config).of_driver)

    def _rows_of(self, index: int) -> Rows | None:
        """Return where shard ``index`` keeps its rows; None: in memory of its own."""
        if self._shared is not None:
            return self._shared.rows(index)
        if not self.config.replay.on_device:
            return None
        capacity = self.replay_config(self.config.replay.num_shards).capacity
        return device_rows(capacity, learner_device(self.config.num_gpus), math.ceil(capacity * self._frames_per_row()))

    def _frames_per_row(self) -> float:
        space = self.observation_space
        assert space.shape is not None
        return frames_per_transition(self.config.replay, self.config.fragment_length, num_frames(space.shape))

    def _replays_here(self) -> bool:
        """Return whether the shards are in this process; ``auto`` spares a small machine their messages."""
        if self.config.replay_storage != "auto":
            return self.config.replay_storage != "actors"
        if self.config.num_workers == 0:
            return True
        if self.config.optimizer.gatherers not in ("auto", 0):
            return False
        if self.config.cpus_of_shards:
            return False
        return available_cpus() < self._num_workers_here + self.config.optimizer.num_replay_buffer_shards + 1

    @cached_property
    def _num_workers_here(self) -> int:
        """How many workers use this machine's CPUs: all, unless some of the trial's bundles are elsewhere.

        It is decided once, since a lost bundle may come back on another machine, but shards do not move.
        """
        group = trial_group()
        if group is None or group.is_all_here:
            return self.config.num_workers
        bundles = bundles_of(self.config)
        return sum(bundles.of_worker(index) in group.here for index in range(bundles.num_workers))
