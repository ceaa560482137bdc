"""Workers and shards that are Ray actors: what callbacks report and raise, and states of shards in a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import states
from rlexp.agents.off_policy_agent import join_shard_states, split_shard_states
from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.errors import CallbackError, CheckpointError
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.replay import ReplayShard
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.worker import RolloutWorker
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.sample_batch import ACTIONS, REWARDS, TD_ERRORS, Array, FrameRows
from tests.lab.checkpoints import in_memory
from tests.lab.doubles import REPLAY, ScriptedPolicy
from tests.lab.envs import COUNTING_ENV
from tests.lab.rollout import spec_of, stacked_rows
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


CONFIG = replace(REPLAY, capacity=300, train_batch_size=32, storage="compressed_frames")


def placed(pool: RayTaskPool, seed: int) -> ReplayShards:
    def place(index: int, generation: int) -> Actor[ReplayShard]:
        return pool.place(f"replay-{index}", Resources(cpus=0, gpus=0), ReplayShard, CONFIG, seed + index)

    return ReplayShards(pool, place, 2)


def played(first: int, count: int) -> FrameRows:
    """Rows of stacks of two frames, each frame its number all over."""
    numbers = np.arange(first, first + count + 2)
    frames = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None, None], (len(numbers), 32, 32, 1))
    columns: dict[str, Array] = {
        ACTIONS: np.arange(count),
        REWARDS: np.arange(count, dtype=np.float32),
        TD_ERRORS: np.linspace(0, 3, count, dtype=np.float32),
    }
    return stacked_rows(first, frames, columns)


def fill(pool: RayTaskPool, shards: ReplayShards) -> None:
    for index, shard in enumerate(shards):
        for first in range(0, 500, 50):
            pool.get(pool.call(shard, ReplayShard.add_batch, played(1000 * index + first, 50)), 60.0)
        pool.get(pool.call(shard, ReplayShard.replay, 0.5), 60.0)


def told(shards: ReplayShards) -> list[dict[str, Any]]:
    return [in_memory(state) for state in shards.states()]


def test_shards_in_other_processes_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PIECE_BYTES", 5000)
    pool = RayTaskPool()
    try:
        shards, again = placed(pool, seed=1), placed(pool, seed=7)
        fill(pool, shards)
        arrays, rest = split_shard_states(shards.states())
        checkpoint = read_checkpoint(write_checkpoint(tmp_path / "checkpoint_000001", arrays, {"replay": rest}, {}))
        again.load(join_shard_states(checkpoint.arrays, checkpoint.state["replay"]))
        np.testing.assert_equal(told(again), told(shards))
        for one, other in zip(shards, again, strict=True):
            drawn, drawn_again = (pool.get(pool.call(each, ReplayShard.replay, 0.5), 60.0) for each in (one, other))
            assert drawn is not None
            assert drawn_again is not None
            np.testing.assert_equal(drawn_again.columns, drawn.columns)
        with pytest.raises(CheckpointError, match="capacity 299 does not fit into 300"):
            again.load([{**state, "capacity": 299} for state in told(shards)])
    finally:
        pool.stop()
