"""Callbacks in workers that are Ray actors: each episode is reported with its metrics, and errors end the trial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.errors import CallbackError
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.worker import RolloutWorker
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import COUNTING_ENV
from tests.lab.rollout import spec_of
from tests.lab.user_callbacks import classes_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
TIMEOUT_S = 60.0
NUM_STEPS = 600


@contextmanager
def two_workers(*names: str, **kwargs: Any) -> Iterator[RemoteWorkers]:
    """Provide two workers in processes of their own, whose callbacks are of these classes."""
    pool = RayTaskPool()

    def place(index: int, attempt: int) -> Actor[RolloutWorker]:
        spec = spec_of(COUNTING_ENV, ScriptedPolicy, sample_async=index == 1)
        spec = replace(spec, index=index, callbacks=classes_of(*names, **kwargs))
        return pool.place(f"worker-{index}", Resources(0.1, 0), RolloutWorker, spec)

    fleet = Fleet(pool, place, 2, FleetLimits(max_restarts=5, sample_timeout_s=TIMEOUT_S))
    source = RemoteWorkers(pool, fleet, queue_depth=1, max_weight_sync_delay=10**9)
    try:
        source.publish(0, {})
        yield source
    finally:
        source.stop()
        pool.stop()


def sampled(source: RemoteWorkers, num_steps: int) -> list[SampleInfo]:
    """Return the reports of so many env steps of each of the two workers."""
    infos: list[SampleInfo] = []
    ends_s = time.monotonic() + TIMEOUT_S
    while min(sum(info.num_env_steps for info in infos if info.worker_index == each) for each in (0, 1)) < num_steps:
        assert time.monotonic() < ends_s
        infos += [sample.info for sample in source.poll(0)]
        source.wait(1.0)
    return infos


def test_every_episode_of_every_worker_is_reported_with_its_steps() -> None:
    with two_workers("Recorder") as source:
        infos = sampled(source, NUM_STEPS)
    for index in (0, 1):
        episodes = Episodes.join([info.episodes for info in infos if info.worker_index == index])
        assert len(episodes.lengths) > NUM_STEPS // 12
        assert episodes.own_metrics["steps"].tolist() == episodes.lengths.tolist()


def test_what_a_hook_raises_is_raised_once_and_no_worker_is_replaced() -> None:
    with two_workers("Fails", hook="on_episode_end") as source:
        with pytest.raises(
            CallbackError, match=r"user_callbacks.py:\d+ in _fail: KeyError: 'is_success' .*worker [01]"
        ):
            sampled(source, NUM_STEPS)
        assert source.num_worker_restarts == 0
