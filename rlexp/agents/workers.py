"""Where an agent's rollout workers run: one in this thread, or several that a task pool places and replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rlexp.agents.observation_filters import ObservationFilters
from rlexp.config.keys.bundles import Bundles, bundles_of
from rlexp.config.keys.common import CommonConfig
from rlexp.envs import EnvConfig, is_atari, make_vector_env
from rlexp.metrics.timers import RunningClock
from rlexp.rollout.accumulators import Fold
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.user_callbacks import callback_classes
from rlexp.rollout.worker import RolloutWorker
from rlexp.rollout.worker_spec import MakePolicy, RewardLimits, RolloutConfig, RowWriter, WorkerSpec
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


def place_workers(
    pool: TaskPool, config: CommonConfig, make_spec: MakeSpec, seed: int, queue_depth: int, max_weight_sync_delay: int
) -> SampleSource:
    """Return the workers of ``config``; with ``num_workers: 0`` one works in this thread.

    Each of the others has up to ``queue_depth`` sample calls in flight, and gets newer weights once it has
    sampled ``max_weight_sync_delay`` env steps with its own.
    """
    if config.num_workers == 0:
        return LocalWorkers(pool, [RolloutWorker(make_spec(0, seed, None))])
    bundles = bundles_of(config)

    def place(index: int, attempt: int) -> Actor[RolloutWorker]:
        # A worker's replacement does not play its predecessor's episodes again.
        own_seed = derive_seed(seed, "attempt", attempt) if attempt else seed
        spec = make_spec(index, own_seed, config.num_threads_per_worker or 1)
        return pool.place(f"worker-{index}", worker_resources(config, bundles, index), RolloutWorker, spec)

    limits = FleetLimits(config.max_num_worker_restarts, config.sample_timeout_s)
    fleet = Fleet(pool, place, config.num_workers, limits, RunningClock())
    return RemoteWorkers(pool, fleet, queue_depth, max_weight_sync_delay)


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
        return config.effective_preprocessor_pref == "deepmind" and is_atari(env)
    return config.clip_rewards
