"""Where an agent's rollout workers run: one in this thread, or several that a task pool places and replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import gymnasium as gym

from rlexp.agents.observation_filters import ObservationFilters
from rlexp.config.keys.bundles import Bundles, bundles_of
from rlexp.config.keys.common import CommonConfig
from rlexp.envs import EnvConfig, has_game_frames, make_vector_env
from rlexp.errors import ResourceError
from rlexp.metrics.timers import RunningClock
from rlexp.rollout.accumulators import Fold
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.user_callbacks import callback_classes
from rlexp.rollout.worker import RolloutWorker
from rlexp.rollout.worker_spec import (
    EACH_ALONE,
    MakePolicy,
    MessageLimits,
    RewardLimits,
    RolloutConfig,
    RowWriter,
    WorkerSpec,
)
from rlexp.seeding import derive_seed
from rlexp.task_pool import Actor, Resources, TaskPool


@dataclass(frozen=True)
class WorkerParts:
    """What an algorithm puts into one of its workers."""

    make_policy: MakePolicy
    fold: Fold
    reported_envs: tuple[bool, ...] | None = None
    """Of the worker's envs, those whose episodes count for ``episode_reward_mean``; None: all."""
    row_writer: RowWriter | None = None
    """What writes its rows into replay; None: it sends them."""


MakeParts = Callable[[int, int, int | None], WorkerParts]
MakeSpec = Callable[[int, int, int | None], WorkerSpec]
"""Both are called with a worker's index, its seed, and the threads of its forward passes (None: as in this process)."""


@dataclass(frozen=True)
class PlayedTrial:
    """The env of a trial as its players need it."""

    env_config: EnvConfig
    seed: int
    """Of all players' random streams."""
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]


class JoinedActors(Protocol):
    """Actors that join a trial from elsewhere and play beside its own workers; the agent owns what they need."""

    def num_players(self, config: CommonConfig) -> int:
        """Return how many can play: the trial's own workers and the seats of those who join, at least one."""
        ...

    def beside(
        self, own: SampleSource | None, pool: TaskPool, config: CommonConfig, trial: PlayedTrial
    ) -> SampleSource:
        """Return the source of those who join, together with the trial's ``own`` workers if it has some.

        Raises UsageError where they cannot join.
        """
        ...

    def figures(self, source: SampleSource) -> Mapping[str, Any]:
        """Return the figures of those who join under their name in the results; ``source`` is from ``beside``."""
        ...


@dataclass(frozen=True)
class WorkerLinks:
    """How a source is linked to its workers, where these have processes of their own."""

    queue_depth: int
    """Sample calls in flight per worker."""
    max_weight_sync_delay: int
    """Env steps that a worker samples before it gets newer weights."""
    shares_weights: bool = False
    """Whether workers on this machine read weights from shared memory, where the system has it: once they are due,
    instead of with their next call."""
    message: MessageLimits = EACH_ALONE
    """Which fragments such a worker sends together."""


def place_workers(
    pool: TaskPool, config: CommonConfig, make_spec: MakeSpec, seed: int, links: WorkerLinks
) -> SampleSource:
    """Return the workers of ``config``; with ``num_workers: 0`` one works in this thread."""
    if config.num_workers == 0:
        return LocalWorkers(pool, [RolloutWorker(make_spec(0, seed, None))])
    bundles = bundles_of(config)
    shared_weights = _shared_weights(config.num_workers, links)

    def place(index: int, attempt: int) -> Actor[RolloutWorker]:
        # A worker's replacement does not play its predecessor's episodes again.
        own_seed = derive_seed(seed, "attempt", attempt) if attempt else seed
        spec = make_spec(index, own_seed, config.num_threads_per_worker or 1)
        if shared_weights is not None:
            spec = replace(spec, weights=shared_weights.reader(index), message=links.message)
        return pool.place(f"worker-{index}", worker_resources(config, bundles, index), RolloutWorker, spec)

    limits = FleetLimits(config.max_num_worker_restarts, config.sample_timeout_s)
    fleet = Fleet(pool, place, config.num_workers, limits, RunningClock())
    return RemoteWorkers(pool, fleet, links.queue_depth, links.max_weight_sync_delay, shared_weights)


def _shared_weights(num_workers: int, links: WorkerLinks) -> SharedWeights | None:
    """Return where workers read weights; None where they are sent them, as where the system gives no shared memory."""
    if not links.shares_weights:
        return None
    try:
        return SharedWeights(num_workers, links.max_weight_sync_delay)
    except ResourceError:
        return None


def worker_resources(config: CommonConfig, bundles: Bundles, index: int) -> Resources:
    """Return what a worker reserves: its bundle of the trial, or for an elastic one, any room of the cluster."""
    return Resources(
        config.num_cpus_per_worker,
        config.num_gpus_per_worker,
        config.custom_resources_per_worker,
        bundle=bundles.of_worker(index),
        outside_group=index >= config.num_reserved_workers,
    )


def worker_spec(
    config: CommonConfig,
    env_config: EnvConfig,
    filters: ObservationFilters,
    make_parts: MakeParts,
    worker_index: int,
    seed: int,
    num_threads: int | None,
) -> WorkerSpec:
    """Return everything that a worker is built from; its filter starts from what was observed so far."""
    parts = make_parts(worker_index, seed, num_threads)
    return WorkerSpec(
        index=worker_index,
        seed=seed,
        make_env=partial(make_vector_env, env_config, config.num_envs_per_worker),
        make_policy=parts.make_policy,
        fold=parts.fold,
        rollout=RolloutConfig(
            fragment_length=config.fragment_length,
            clip_rewards=reward_limits(config, env_config.env),
            batch_mode=config.batch_mode,
            sample_async=config.workers_sample_ahead,
            observation_filter=filters.of_worker(worker_index),
            reported_envs=parts.reported_envs,
        ),
        row_writer=parts.row_writer,
        callbacks=callback_classes(config.callback_parts, env_config.modules),
    )


def reward_limits(config: CommonConfig, env: str) -> RewardLimits:
    """Return ``clip_rewards``, with null decided by the env."""
    if config.clip_rewards is None:
        return config.effective_preprocessor_pref == "deepmind" and has_game_frames(env, config.env_config)
    return config.clip_rewards
