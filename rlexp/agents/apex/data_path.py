"""Ape-X around any agent with replay: the places of workers, shards and learner, and the optimizer between them.

An agent that learns from replay in turn becomes one of Ape-X (Horgan et al. 2018) if it also derives from
``ApexReplayAgent``, as ``ApexAgent`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np

from rlexp.agents.apex.gatherers import groups_of, place_gatherers, worker_nodes
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import free_device_bytes, learner_device
from rlexp.agents.torch.device_frames import check_frames_fit, device_rows
from rlexp.agents.torch.process import LearnerThreads, trial_load
from rlexp.agents.workers import MakeSpec, WorkerLinks, WorkerParts, worker_spec
from rlexp.cluster.pool.nodes import trial_group
from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.cluster.room.machine import available_cpus
from rlexp.cluster.room.shortfalls import frames_per_transition
from rlexp.config.keys.apex import ApexKeys
from rlexp.config.keys.trial import bundles_of
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer, RowsOfShard
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.policy_optimizer import Figures, InlineLearnerRunner
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.policy import Learner
from rlexp.replay import ReplayShard
from rlexp.replay.rows import Rows
from rlexp.replay.shared_rows import RingSizes, SharedReplay
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.gatherer import GatheredWorkers
from rlexp.rollout.source import SampleSource
from rlexp.rollout.worker import EACH_ALONE, MessageLimits, RowWriter
from rlexp.sample_batch import num_frames
from rlexp.schedules import derive_seed

MESSAGE_LIMITS: Final = MessageLimits(4, 96_000, 0.1)
"""Limits on the fragments that a worker sends at once, since each message costs the driver and the worker time.

Rows of more than 100 kB would go through Ray's object store, which costs another message. Slow envs send each of their
fragments at once: a worker that shares its core takes 20 ms for 400 steps of CartPole, so four of them fit into 100 ms.
"""


class ThreadedLearner(Learner, Protocol):
    """A Learner whose threads can change while it runs."""

    num_threads: int | None
    """Number of threads from its next update on; may be set from another thread."""


class ApexDataPath:
    """Places the workers, shards and optimizer of an Ape-X agent; owned by that agent.

    ``Agent`` calls the agent's methods in this order: learner, source, optimizer.
    """

    def __init__(self, agent: OffPolicyAgent[Any], config: ApexKeys) -> None:
        """Initialise with the agent's ``config``. ResourceError if replay does not fit into the GPU's memory."""
        self._agent, self._config = agent, config
        self._learner: ThreadedLearner  # not before ``make_optimizer``
        self._gathered: GatheredWorkers | None = None
        if self._config.replay.on_device:
            self._check_device_memory()
        self._threads = self._make_learner_threads()

    def make_source(self) -> SampleSource:
        """Place the workers, with gatherers if the trial has them."""
        settings, agent = self._config.optimizer, self._agent
        self._gathered = self._place_gatherers()
        if self._gathered is not None:
            return agent.with_board(self._gathered)
        delay, message = settings.max_weight_sync_delay, self._message_limits()
        return agent.place_workers(
            WorkerLinks(settings.sample_queue_depth, delay, shares_weights=True, message=message)
        )

    def row_writer(self, worker_index: int) -> RowWriter | None:
        """Return the writer of a worker's rows into replay; None if the worker sends its rows."""
        if self._shared is None:
            return None
        routing_seed = derive_seed(self._agent.stream_seed, "worker", worker_index, "routing")
        return self._shared.writer(worker_index, routing_seed)

    def make_optimizer(self, learner: ThreadedLearner, source: SampleSource) -> AsyncReplayOptimizer:
        """Place the shards; return the optimizer that lets workers, shards and learner run side by side."""
        self._learner = learner
        settings, agent = self._config.optimizer, self._agent
        config = DataPathConfig(
            replay_depth=settings.replay_queue_depth,
            store_depth=settings.sample_queue_depth * agent.num_players,
            beta=agent.beta_schedule(),
            reports_timing=settings.debug,
            min_weight_publish_s=0.0 if agent.plays_alone else settings.min_weight_publish_s,
            num_gatherers=0 if self._gathered is None else self._gathered.num_gatherers,
            steps_per_row=self._config.replay.steps_per_row,
        )
        return AsyncReplayOptimizer(
            agent.pool,
            source,
            ReplayShards(agent.pool, self._place_shard, settings.num_replay_buffer_shards),
            self._make_learner_runner(),
            config,
            Pacing(self._config.training_intensity, self._config.train_batch_size),
            np.random.default_rng(derive_seed(agent.stream_seed, "routing")),
        )

    def observe(self, row: Mapping[str, Any], infos: Sequence[SampleInfo]) -> None:
        """Set the number of the learner's threads by the load of the iteration of ``row``."""
        if self._threads is not None:
            self._threads.observe(trial_load(row, infos, self._config.train_batch_size))
            self._learner.num_threads = self._threads.number

    def stats(self) -> dict[str, Any]:
        """Return the learner's number of threads, if it is decided while training runs."""
        return {} if self._threads is None else {"num_learner_threads": self._threads.number}

    # The learner.

    def _make_learner_runner(self) -> LearnerRunner[RowsOfShard]:
        """Return the learner's runner: a thread; without other players the optimizer's, for repeatable runs."""
        if self._agent.plays_alone:
            return InlineLearnerRunner(self._learner)
        return LearnerThread(self._learner, self._config.optimizer.learner_queue_depth)

    def _make_learner_threads(self) -> LearnerThreads | None:
        """Return the threads of a learner that takes its workers' idle cores; None if the workers are elsewhere.

        A learner without its own thread keeps its number of threads, as more would change the order of sums.
        """
        config = self._config
        if config.num_gpus or config.num_workers == 0 or self._agent.board is not None:
            return None
        fewest, num_workers = max(int(config.num_cpus_for_driver), 1), self._num_workers_here
        reserved = fewest + int(num_workers * config.num_cpus_per_worker)
        return LearnerThreads(fewest, min(available_cpus(), reserved), num_workers)

    # The workers.

    def _message_limits(self) -> MessageLimits:
        """Return which fragments are sent together if sampling never waits for the learner.

        With an intensity, workers wait for the learner, and samples taken in advance would get old. A ring has room for
        single fragments only.
        """
        is_waited_for = self._config.workers_wait or self._shared is not None
        return EACH_ALONE if is_waited_for else MESSAGE_LIMITS

    def _place_gatherers(self) -> GatheredWorkers | None:
        """Return gatherers with their workers; None if the shards are in this process, which alone can add rows."""
        if self._replays_here():
            return None
        settings, agent = self._config.optimizer, self._agent
        groups = groups_of(settings.gatherers, *worker_nodes(self._config, trial_group()))
        if not groups:
            return None
        return place_gatherers(agent.pool, self._config, settings, agent.spec_maker(), agent.stream_seed, groups)

    @cached_property
    def _num_workers_here(self) -> int:
        """Number of workers on this machine's CPUs: all, unless some of the trial's bundles are elsewhere.

        It is decided once, since a lost bundle may come back on another machine, but shards do not move.
        """
        group = trial_group()
        if group is None or group.is_all_here:
            return self._config.num_workers
        bundles = bundles_of(self._config)
        return sum(bundles.of_worker(index) in group.here for index in range(bundles.num_workers))

    # The shards.

    @cached_property
    def _shared(self) -> SharedReplay | None:
        """The memory into which workers in other processes write, with ``replay_storage: shared_memory``."""
        config, settings = self._config, self._config.optimizer
        if self._config.replay_storage != "shared_memory" or config.num_workers == 0:
            return None
        sizes = RingSizes(
            capacity=self._agent.replay_config(settings.num_replay_buffer_shards).capacity,
            num_rings=config.num_workers,
            # The fragments that a worker was asked for, and those that came back and are about to be stored. With so
            # much room, no worker ever waits.
            headroom=2 * settings.sample_queue_depth * config.fragment_length * self._rows_per_step,
        )
        return SharedReplay(settings.num_replay_buffer_shards, sizes)

    @property
    def _rows_per_step(self) -> int:
        """Rows of a step of all envs of a worker."""
        return self._config.num_envs_per_worker * self._agent.rows_per_env

    def _place_shard(self, index: int, attempt: int) -> Actor[ReplayShard]:
        agent = self._agent
        seed = derive_seed(agent.stream_seed, "replay", index)
        shard = agent.pool.place(
            f"replay-{index}",
            None if self._replays_here() else self._shard_resources(),
            ReplayShard,
            agent.replay_config(self._config.optimizer.num_replay_buffer_shards),
            derive_seed(seed, "attempt", attempt) if attempt else seed,
            self._rows_of(index),
        )
        if self._gathered is not None:
            self._gathered.set_shard(index, shard)
        return shard

    def _shard_resources(self) -> Resources:
        """Return the driver's bundle, so that batches are not sent from another machine to the learner.

        A shard asks for no CPUs: Tune gives this process the whole bundle, with the CPUs for shards.
        """
        return Resources(cpus=0, gpus=0, bundle=bundles_of(self._config).of_driver)

    def _replays_here(self) -> bool:
        """Return whether the shards are in this process; ``auto`` does so on a small machine to save messages."""
        settings = self._config.optimizer
        if self._agent.plays_alone:  # nothing runs beside it, so that a run can be repeated
            return True
        if self._config.replay_storage != "auto":
            return self._config.replay_storage != "actors"
        if self._config.num_workers == 0:
            return True
        if settings.gatherers not in ("auto", 0) or self._config.cpus_of_shards:
            return False
        return available_cpus() < self._num_workers_here + settings.num_replay_buffer_shards + 1

    def _rows_of(self, index: int) -> Rows | None:
        """Return the rows of shard ``index``; None: it keeps them in its own memory."""
        if self._shared is not None:
            return self._shared.rows(index)
        if not self._config.replay.on_device:
            return None
        capacity = self._agent.replay_config(self._config.replay.num_shards).capacity
        device = learner_device(self._config.num_gpus)
        steps = capacity * self._config.replay.steps_per_row
        return device_rows(capacity, device, math.ceil(steps * self._frames_per_row()))

    def _check_device_memory(self) -> None:
        space, num_gpus, num_rows = self._agent.observation_space, self._config.num_gpus, self._config.buffer_size
        assert space.shape is not None
        assert space.dtype is not None
        frame_bytes = math.prod(space.shape) * space.dtype.itemsize / num_frames(space.shape)
        needed = num_rows * self._frames_per_row() * frame_bytes
        check_frames_fit(needed, free_device_bytes(num_gpus), num_rows)

    def _frames_per_row(self) -> float:
        space = self._agent.observation_space
        assert space.shape is not None
        return frames_per_transition(self._config.replay, self._config.fragment_length, num_frames(space.shape))


ApexKeysT = TypeVar("ApexKeysT", bound=ApexKeys)


class ApexReplayAgent(OffPolicyAgent[ApexKeysT]):
    """The methods of an agent of Ape-X; a subclass has the others from the agent whose network it has."""

    target_counts_trained = True

    def make_source(self) -> SampleSource:
        return self._data_path.make_source()

    def spec_maker(self) -> MakeSpec:
        return partial(worker_spec, self.config, self.env_config, self.filters, self._writing_parts)

    def make_optimizer(self, learner: Learner, source: SampleSource) -> AsyncReplayOptimizer:
        return self._data_path.make_optimizer(cast(ThreadedLearner, learner), source)

    def observe(self, row: Mapping[str, Any], infos: Sequence[SampleInfo]) -> None:
        self._data_path.observe(row, infos)

    def stats(self) -> Figures:
        return {**super().stats(), **self._data_path.stats()}

    @cached_property
    def _data_path(self) -> ApexDataPath:
        return ApexDataPath(self, self.config)

    def _writing_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        parts = self.worker_parts(worker_index, seed, num_threads)
        return replace(parts, row_writer=self._data_path.row_writer(worker_index))
