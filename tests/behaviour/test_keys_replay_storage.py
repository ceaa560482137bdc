"""The keys that say how replay keeps its rows; each test fails if its key is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.config.apex import ApexConfig
from rlexp.config.dqn import DQNConfig
from rlexp.config.model import ModelConfig
from rlexp.replay import ShardStats
from rlexp.task_pool import InlineTaskPool, Resources
from tests.behaviour.rollout_agents import SMALL, PlacementPool
from tests.envs import COUNTING_ENV, PIXEL_ENV


def shard_after_an_iteration(env: str, **keys: Any) -> ShardStats:
    config = DQNConfig(
        preprocessor_pref=None,
        hiddens=(8,),
        model=ModelConfig(fcnet_hiddens=(8,)),
        train_batch_size=8,
        learning_starts=8,
        buffer_size=200,
        timesteps_per_iteration=40,
        min_iter_time_s=0.0,
        **keys,
    )
    agent = DQNAgent(env, config, InlineTaskPool(), seed=0)
    agent.train()
    (stats,) = agent.optimizer.stats().shards
    agent.stop()
    assert stats.num_sampled > 0
    return stats


@pytest.mark.key("compress_observations")
def test_images_in_replay_are_compressed() -> None:
    image = {"env_config": {"size": 32}}
    compressed = shard_after_an_iteration(PIXEL_ENV, compress_observations=True, **image)
    plain = shard_after_an_iteration(PIXEL_ENV, compress_observations=False, **image)
    assert plain.nbytes > 200 * 2 * 32 * 32 * 3
    assert compressed.nbytes < plain.nbytes / 5


@pytest.mark.key("compress_observations")
def test_small_vectors_are_kept_as_they_are() -> None:
    compressed = shard_after_an_iteration(COUNTING_ENV, compress_observations=True)
    assert compressed.nbytes == shard_after_an_iteration(COUNTING_ENV, compress_observations=False).nbytes


@pytest.mark.key("replay_storage")
@pytest.mark.parametrize(
    ("replay_storage", "cpus", "own_processes"),
    [("actors", 1, True), ("local", 64, False), ("auto", 5, True), ("auto", 4, False)],
)
def test_replay_shards_have_processes_of_their_own_or_the_learners(
    replay_storage: str, cpus: int, own_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.apex.agent.available_cpus", lambda: cpus)
    config = ApexConfig(
        **{**SMALL, "num_workers": 2, "optimizer": {"num_replay_buffer_shards": 2}}, replay_storage=replay_storage
    )
    pool = PlacementPool()
    ApexAgent(COUNTING_ENV, config, pool, seed=0).stop()
    expected = Resources(cpus=0, gpus=0) if own_processes else None
    assert [pool.placed[name] for name in ("replay-0", "replay-1")] == [expected, expected]
    assert pool.placed["worker-0"] is not None
