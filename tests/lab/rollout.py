"""Short ways to the WorkerSpecs that tests need, to fleets of workers that are there, and to what these send."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlexp.cluster.pool.pool import Actor, TaskPool
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.folds import Fold, NStep
from rlexp.rollout.recorder import RolloutConfig
from rlexp.rollout.worker import MakePolicy, RolloutWorker, WorkerSpec
from rlexp.sample_batch import FRAME_IDS, NEW_FRAME_IDS, Array, FrameRows, SampleBatch, SentRows

PLAIN = RolloutConfig(
    fragment_length=10,
    clip_rewards=False,
    batch_mode="truncate_episodes",
    sample_async=False,
)
ONE_STEP = NStep(1, 0.9)


def spec_of(
    env: str,
    make_policy: MakePolicy,
    num_envs: int = 2,
    fold: Fold = ONE_STEP,
    env_config: Mapping[str, Any] | None = None,
    **rollout: Any,
) -> WorkerSpec:
    """Return worker 0 with seed 0; ``rollout`` differs from PLAIN, and a test may ``replace`` the rest."""
    make_env = partial(make_vector_env, EnvConfig(env, env_config or {}), num_envs)
    return WorkerSpec(0, 0, make_env, make_policy, fold, replace(PLAIN, **rollout))


def fleet_of(pool: TaskPool, workers: Sequence[Actor[RolloutWorker]]) -> Fleet:
    """Return a fleet of ``workers`` that replaces none of them."""
    limits = FleetLimits(max_restarts=0, sample_timeout_s=60.0)
    return Fleet(pool, lambda index, attempt: workers[index], len(workers), limits)


def whole(sent: SentRows) -> SampleBatch:
    """Return rows that were sent with whole observations; AssertionError where they were not."""
    assert isinstance(sent, SampleBatch)
    return sent


def assert_same_batch(found: SampleBatch, expected: SampleBatch) -> None:
    """Fail where columns, their order or dtypes, or any number differ."""
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype


def stacked_rows(
    first: int, frames: Array, columns: Mapping[str, Array], stacked: int = 2, n_step: int = 1
) -> FrameRows:
    """Return the rows of one env from its step ``first`` on, which shows stacks of ``frames [F, ...]``, one by one."""
    count = len(frames) - (stacked - 1) - n_step
    ids = (np.arange(count)[:, None] + np.arange(stacked)).astype(np.int32)
    rows = SampleBatch({FRAME_IDS: ids, NEW_FRAME_IDS: ids + np.int32(n_step), **columns})
    return FrameRows(rows, frames, np.arange(first, first + len(frames)))
