"""An agent's rollout workers: their specs, their places, and their part of a checkpoint.

There is one worker in this thread, or several that a task pool places and replaces; actors of a board may play beside
them. The agent keeps the moments of ``observation_filter``. It checks a checkpoint before it continues from it, as the
file or the experiment may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, Protocol

import gymnasium as gym
import numpy as np

from rlexp.cluster.pool.pool import Actor, Resources, TaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.env_ids import has_game_frames
from rlexp.config.keys.trial import Bundles, bundles_of
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.envs.action_masks import seen_space, standardised_shape
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.errors import CheckpointError, ResourceError, UsageError
from rlexp.files import plain
from rlexp.metrics import RunningClock
from rlexp.policy import Learner
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.filters import Moments, ObservedMoments, StandardisingPolicy
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.folds import Fold
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.recorder import RewardLimits, RolloutConfig
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.user_callbacks import callback_classes
from rlexp.rollout.worker import (
    EACH_ALONE,
    MakePolicy,
    MessageLimits,
    RolloutWorker,
    RowWriter,
    SamplingWorker,
    WorkerSpec,
)
from rlexp.runs.checkpoint_contents import Checkpoint, Manifest, read_state
from rlexp.runs.rows import checkpoint_row
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed


@dataclass(frozen=True)
class WorkerParts:
    """An algorithm's part of one of its workers."""

    make_policy: MakePolicy
    fold: Fold | None = None
    reported_envs: tuple[bool, ...] | None = None
    """The worker's envs whose episodes count for ``episode_reward_mean``; None: all."""
    row_writer: RowWriter | None = None
    """Writes its rows into replay; None: it sends them."""


MakeParts = Callable[[int, int, int | None], WorkerParts]


MakeSpec = Callable[[int, int, int | None], WorkerSpec]
"""Functions of a worker's index, its seed, and the threads of its forward passes (None: the process's own)."""


MakeWorker = Callable[[WorkerSpec], SamplingWorker]
"""The class of a worker, as pools place objects of classes only."""


@dataclass(frozen=True)
class WorkerLinks:
    """How a source is linked to its workers, if these have processes of their own."""

    queue_depth: int
    """Sample calls in flight per worker."""
    max_weight_sync_delay: int
    """Env steps that a worker samples before it gets newer weights."""
    shares_weights: bool = False
    """Whether workers on this machine read weights from shared memory when they are due, instead of getting them with
    their next call. Needs a system with shared memory."""
    message: MessageLimits = EACH_ALONE
    """Which fragments such a worker sends together."""


def place_workers(
    pool: TaskPool,
    config: CommonConfig,
    make_spec: MakeSpec,
    seed: int,
    links: WorkerLinks,
    make_worker: MakeWorker = RolloutWorker,
) -> SampleSource:
    """Return the workers of ``config``; with ``num_workers: 0``, one works in this thread."""
    if config.num_workers == 0:
        return LocalWorkers(pool, [make_worker(make_spec(0, seed, None))])
    bundles = bundles_of(config)
    shared_weights = _shared_weights(config.num_workers, links)

    def place(index: int, attempt: int) -> Actor[SamplingWorker]:
        # A worker's replacement does not repeat its predecessor's episodes.
        own_seed = derive_seed(seed, "attempt", attempt) if attempt else seed
        spec = make_spec(index, own_seed, config.num_threads_per_worker or 1)
        if shared_weights is not None:
            spec = replace(spec, weights=shared_weights.reader(index), message=links.message)
        return pool.place(f"worker-{index}", worker_resources(config, bundles, index), make_worker, spec)

    limits = FleetLimits(config.max_num_worker_restarts, config.sample_timeout_s)
    fleet = Fleet(pool, place, config.num_workers, limits, RunningClock())
    return RemoteWorkers(pool, fleet, links.queue_depth, links.max_weight_sync_delay, shared_weights)


def _shared_weights(num_workers: int, links: WorkerLinks) -> SharedWeights | None:
    """Return the shared weights; None if weights are sent, as when the system gives no shared memory."""
    if not links.shares_weights:
        return None
    try:
        return SharedWeights(num_workers, links.max_weight_sync_delay)
    except ResourceError:
        return None


def worker_resources(config: CommonConfig, bundles: Bundles, index: int) -> Resources:
    """Return the resources of a worker: its bundle of the trial, or for an elastic one any room of the cluster."""
    return Resources(
        config.num_cpus_per_worker,
        config.num_gpus_per_worker,
        config.custom_resources_per_worker,
        bundle=bundles.of_worker(index),
        outside_group=index >= config.num_reserved_workers,
        gives_way=config.workers_wait,
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
    """Return the spec of a worker; its filter starts from the moments observed so far."""
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


@dataclass(frozen=True)
class PlayedTrial:
    """The env of a trial as its players need it."""

    env_config: EnvConfig
    seed: int
    """Seed of all players' random streams."""
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]


class JoinedActors(Protocol):
    """Actors that join a trial and play beside its own workers; owned by the agent."""

    def num_players(self, config: CommonConfig) -> int:
        """Return the most players: the trial's own workers and the seats of joined actors, at least one."""

    def beside(
        self, own: SampleSource | None, pool: TaskPool, config: CommonConfig, trial: PlayedTrial
    ) -> SampleSource:
        """Return the source of joined actors, together with the trial's ``own`` workers if there are any.

        Raises UsageError if actors cannot join.
        """

    def figures(self, source: SampleSource) -> Mapping[str, Any]:
        """Return the joined actors' stats under their name in the results; ``source`` is from ``beside``."""


FILTERS: Final = "filters"
"""The group of a checkpoint's arrays for the filters."""


IMAGE_RANK = 3


class ObservationFilters:
    """Owns the moments of the workers' observations; does nothing under ``NoFilter``.

    Each fragment reports its moments, so these are always the moments of the steps in ``num_steps_sampled``, and no
    worker has to be called.
    """

    def __init__(
        self,
        config: CommonConfig,
        observation_space: gym.Space[Any],
        arrays: Mapping[str, Mapping[str, Array]],
        num_players: int | None = None,
    ) -> None:
        """Begin with empty moments, or with the ``arrays`` of a checkpoint; raises UsageError for images.

        Workers and joined actors together are ``num_players``; None: there are workers only.
        """
        self.shared_at = 0
        """Env steps after which the workers last got the merged moments."""
        self._observed: ObservedMoments | None = None
        if config.observation_filter == "NoFilter":
            return
        seen, shape = seen_space(observation_space), standardised_shape(observation_space)
        if len(seen.shape or ()) == IMAGE_RANK and seen.dtype == np.uint8:
            raise UsageError(
                f"observation_filter {config.observation_filter} does not suit images {shape}",
                "use observation_filter: NoFilter; networks scale the bytes of images themselves",
            )
        self._observed = ObservedMoments(num_players or config.num_workers, shape, config.synchronize_filters)
        if FILTERS in arrays:
            self._observed.load(arrays[FILTERS])

    def of_worker(self, worker_index: int) -> Moments | None:
        """Return the moments with which a worker's filter begins; None: it has no filter."""
        return None if self._observed is None else self._observed.of_worker(worker_index)

    def add(self, infos: Iterable[SampleInfo]) -> None:
        """Add the observed moments of new fragments."""
        for info in infos:
            if self._observed is not None and info.observed is not None:
                self._observed.add(info.worker_index, info.observed)

    def synchronize(self, source: SampleSource, num_steps: int, interval: int = 0) -> None:
        """Give all workers the merged moments after ``num_steps`` env steps, if they share them.

        They get none within ``interval`` env steps.
        """
        if self._observed is None or not self._observed.shared:
            return
        if num_steps - self.shared_at >= interval:
            source.set_filter(self._observed.of_all())
            self.shared_at = num_steps

    def applied_to(self, policy: ActingPolicy) -> ActingPolicy:
        """Return ``policy`` with the observation filter of an evaluation."""
        moments = self.of_evaluations()
        return policy if moments is None else StandardisingPolicy(policy, moments)

    def of_evaluations(self) -> Moments | None:
        """Return the moments that evaluations use; None: they do not standardise."""
        return None if self._observed is None else self._observed.of_all()

    def arrays(self) -> dict[str, dict[str, Array]]:
        """Return the arrays for a checkpoint."""
        return {} if self._observed is None else {FILTERS: self._observed.state()}


_COUNTERS: Final = ("iteration", "num_steps_sampled", "num_steps_trained", "episodes_total")


_MOST: Final = 2**53
"""Above this, adding 1 to a count may not change it, and an iteration would never end."""


_HINT: Final = "it was changed after it was written; use an earlier checkpoint of the trial"


_LEARNER_HINT: Final = "restore one of the same algorithm, env and model; or it was changed after it was written"


_LONGEST_CAUSE: Final = 300


def check_counters(path: Path, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a counter of the checkpoint at ``path`` is not a count or a time."""
    for name in _COUNTERS:
        value = state.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
            raise CheckpointError(f"checkpoint {path}: {name} in its state is not a count", _HINT)
    seconds = state.get("time_total_s")
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOST:
        raise CheckpointError(f"checkpoint {path}: time_total_s in its state is not a time", _HINT)


def refuse_unloadable(newest: tuple[Path, Manifest] | None) -> None:
    """Raise CheckpointError if a trial could not start from its newest, verified checkpoint."""
    if newest is not None:
        path, manifest = newest
        check_counters(path, read_state(path))
        checkpoint_row(path, manifest.metadata)


def resumed_seed(seed: int, checkpoint: Checkpoint) -> int:
    """Return the seed of the random streams after ``checkpoint``; check its counters."""
    check_counters(checkpoint.path, checkpoint.state)
    return derive_seed(seed, "resumed", checkpoint.state["num_steps_sampled"])


def load_learner(learner: Learner, checkpoint: Checkpoint) -> None:
    """Let ``learner`` continue from ``checkpoint``; raises CheckpointError if that has no state of it."""
    checkpoint.check_numbers("learner")
    with errors_of(checkpoint.path, _LEARNER_HINT):
        learner.load_state_dict(checkpoint.arrays["learner"])


@contextmanager
def errors_of(path: Path, hint: str = _HINT) -> Iterator[None]:
    """Turn errors of loading a state of another form in the body into a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        what = shorten(f"{type(error).__name__}: {error}", _LONGEST_CAUSE)  # torch's errors have a line for each weight
        raise CheckpointError(f"checkpoint {path} does not hold the state of this agent ({what})", hint) from error


def rollout_fingerprint(env_config: EnvConfig, config: CommonConfig, has_board: bool = False) -> dict[str, Any]:
    """Return the env and the keys that decide how workers play, in JSON form."""
    # The import path and the number of stepping threads change nothing in an env.
    env = asdict(replace(env_config, modules=NO_MODULES, num_threads=1))
    del env["actions"]  # the choice of playable actions does not change how they are played
    for part in ("wrappers", "preprocessor", "action_mask"):
        if not env[part]:
            del env[part]  # without them, checkpoints do not change
    keys = config.model_dump(mode="json", include=set(config.ROLLOUT_KEYS)) | {
        "sample_batch_size": config.fragment_length
    }
    board = {"board": True} if has_board else {}  # its source has another state; without one, checkpoints do not change
    fingerprint: dict[str, Any] = plain({"env": env, "config": keys, **board})
    return fingerprint
