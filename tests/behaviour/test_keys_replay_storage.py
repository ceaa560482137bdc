"""The keys that say how replay keeps its rows; each test fails if its key is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.torch.device import DeviceBatch
from rlexp.cluster.pool import InlineTaskPool, Resources, TrialGroup
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.policy import LearnResult
from rlexp.replay.rows import STORAGE_PREFIX
from rlexp.runs.checkpoints import Checkpoint, read_checkpoint
from rlexp.sample_batch import OBS, SampleBatch, WrittenRows
from tests.behaviour.rollout_agents import SMALL, PlacementPool, poll_sent, weights_of
from tests.envs import COUNTING_ENV, PIXEL_ENV
from tests.replay_states import in_memory


def replay_bytes(env: str, **keys: Any) -> int:
    """Return the bytes of replay of an agent that has learned from it for an iteration."""
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
    nbytes = agent.optimizer.replay_bytes()
    agent.stop()
    assert agent.optimizer.counters.num_steps_trained > 0
    return nbytes


@pytest.mark.key("compress_observations")
def test_images_in_replay_are_compressed() -> None:
    image = {"env_config": {"size": 32}}
    compressed = replay_bytes(PIXEL_ENV, compress_observations=True, **image)
    plain = replay_bytes(PIXEL_ENV, compress_observations=False, **image)
    assert plain > 200 * 32 * 32 * 3
    assert compressed < plain / 5


@pytest.mark.key("compress_observations")
def test_small_vectors_are_kept_as_they_are() -> None:
    compressed = replay_bytes(COUNTING_ENV, compress_observations=True)
    assert compressed == replay_bytes(COUNTING_ENV, compress_observations=False)


@pytest.mark.key("replay_storage")
@pytest.mark.parametrize(
    ("replay_storage", "cpus", "own_processes"),
    [
        ("actors", 1, True),
        ("local", 64, False),
        ("shared_memory", 64, False),
        ("device", 64, False),
        ("auto", 5, True),
        ("auto", 4, False),
    ],
)
def test_replay_shards_have_processes_of_their_own_or_the_learners(
    replay_storage: str, cpus: int, own_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.apex.agent.available_cpus", lambda: cpus)
    changes = {"num_workers": 2, "optimizer": {"num_replay_buffer_shards": 2}, "replay_storage": replay_storage}
    config = ApexConfig(**{**SMALL, **changes})
    pool = PlacementPool()
    ApexAgent(COUNTING_ENV, config, pool, seed=0).stop()
    expected = Resources(cpus=0, gpus=0, bundle=0) if own_processes else None
    assert [pool.placed[name] for name in ("replay-0", "replay-1")] == [expected, expected]
    assert pool.placed["worker-0"] is not None


@pytest.mark.key("replay_storage")
@pytest.mark.parametrize(
    ("cpus", "here", "own_processes"),
    [(16, range(21), False), (16, range(1), True), (4, range(1), False), (10, range(7), False), (11, range(7), True)],
)
def test_only_workers_on_the_learners_machine_take_cpus_of_shards(
    cpus: int, here: range, own_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.apex.agent.available_cpus", lambda: cpus)
    monkeypatch.setattr("rlexp.agents.apex.agent.trial_group", lambda: TrialGroup(21, frozenset(here)))
    config = ApexConfig(**{**SMALL, "num_workers": 20, "optimizer": {"num_replay_buffer_shards": 4}})
    pool = PlacementPool()
    agent = ApexAgent(COUNTING_ENV, config, pool, seed=0)
    agent.stop()
    assert (pool.placed["replay-0"] is not None) == own_processes


def shared_agent(env: str = COUNTING_ENV, **changes: Any) -> ApexAgent:
    keys = {
        **SMALL,
        "num_workers": 2,
        "train_batch_size": 32,
        "optimizer": {"num_replay_buffer_shards": 2},
        "replay_storage": "shared_memory",
    }
    return ApexAgent(env, ApexConfig(**{**keys, **changes}), PlacementPool(), seed=0)


def held_rows(agent: ApexAgent) -> list[tuple[float, ...]]:
    states = [in_memory(state) for state in agent.optimizer.replay_states()]
    return [tuple(row) for state in states for row in state.get(STORAGE_PREFIX + OBS, ())]


def nums_added(agent: ApexAgent) -> list[int]:
    """Return how many rows were ever added to each shard."""
    return [state["num_added"] for state in agent.optimizer.replay_states()]


@pytest.mark.key("replay_storage")
@pytest.mark.parametrize("changes", [{}, {"sample_async": True}, {"observation_filter": "MeanStdFilter"}])
def test_in_shared_memory_workers_write_their_rows_themselves(changes: dict[str, Any]) -> None:
    agent = shared_agent(**changes)
    samples = poll_sent(agent)
    assert {info.worker_index for _, info in samples} == {0, 1}
    for sent, info in samples:
        assert isinstance(sent, WrittenRows)
        assert (sent.ring, sent.count, sent.shard) == (info.worker_index, info.num_rows, info.shard)
        assert sent.has_td_errors
    agent.train()
    assert sum(nums_added(agent)) > 0
    agent.stop()


@pytest.mark.key("replay_storage")
def test_in_shared_memory_as_many_rows_are_kept() -> None:
    agent = shared_agent(buffer_size=100)
    while min(nums_added(agent)) < 200:
        agent.train()
    assert agent.optimizer.stats()["replay_fill_per_shard"] == [1.0, 1.0]
    assert [state["capacity"] for state in agent.optimizer.replay_states()] == [50, 50]
    assert len(held_rows(agent)) == 100
    agent.stop()


@pytest.mark.key("replay_storage", "compress_observations")
def test_in_shared_memory_no_image_is_compressed() -> None:
    agent = shared_agent(PIXEL_ENV, preprocessor_pref=None, env_config={"size": 32}, compress_observations=True)
    while min(nums_added(agent)) == 0:
        agent.train()
    assert agent.optimizer.replay_bytes() > agent.config.buffer_size * 2 * 32 * 32 * 3
    agent.stop()


@pytest.mark.key("replay_storage")
def test_without_other_processes_there_is_nothing_to_share() -> None:
    agent = shared_agent(num_workers=0)
    assert all(isinstance(sent, SampleBatch) for sent, _ in poll_sent(agent))
    agent.train()
    agent.stop()


@pytest.mark.key("replay_storage", "checkpoint_replay")
def test_shared_rows_are_in_checkpoints_and_come_back(tmp_path: Path) -> None:
    agent = shared_agent(checkpoint_replay=True)
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    saved = held_rows(agent)
    agent.stop()
    config = agent.config
    resumed = ApexAgent(COUNTING_ENV, config, PlacementPool(), seed=0, checkpoint=read_checkpoint(path))
    assert sorted(held_rows(resumed)) == sorted(saved)
    assert len(saved) > 0
    resumed.train()
    assert len(held_rows(resumed)) > len(saved)
    resumed.stop()


@pytest.mark.key("replay_storage")
def test_whole_episodes_fit_into_no_ring() -> None:
    with pytest.raises(ValidationError) as caught:
        ApexConfig(replay_storage="shared_memory", batch_mode="complete_episodes")
    (conflict,) = caught.value.errors()[0]["ctx"]["conflicts"]
    assert conflict.keys == ("replay_storage", "batch_mode")
    assert "fragments of fixed length" in conflict.message


def device_agent(env: str = PIXEL_ENV, checkpoint: Checkpoint | None = None, **changes: Any) -> ApexAgent:
    image = {"preprocessor_pref": None, "env_config": {"size": 32}}
    keys = {**SMALL, **image, "num_workers": 0, "train_batch_size": 32, "optimizer": {"num_replay_buffer_shards": 2}}
    config = ApexConfig(**{**keys, "replay_storage": "device", **changes})
    return ApexAgent(env, config, PlacementPool(), 0, checkpoint)


def weights_after_training(agent: ApexAgent) -> dict[str, Any]:
    agent.train()
    weights = dict(weights_of(agent))
    agent.stop()
    assert agent.optimizer.counters.num_steps_trained > 0
    return weights


@pytest.mark.key("replay_storage", "compress_observations")
def test_on_the_learners_device_batches_have_their_observations_there() -> None:
    agent = device_agent(compress_observations=True)
    batches = []
    with agent.optimizer.paused() as learner:
        learn_on_batch = learner.learn_on_batch

        def learn(batch: SampleBatch) -> LearnResult:
            batches.append(batch)
            return learn_on_batch(batch)

        learner.learn_on_batch = learn  # type: ignore[method-assign]
    agent.train()
    assert batches
    for batch in batches:
        assert isinstance(batch, DeviceBatch)
        assert tuple(batch.tensors[OBS].shape) == (32, 32, 32, 3)
    assert agent.optimizer.replay_bytes() > agent.config.buffer_size * 32 * 32 * 3
    agent.stop()


@pytest.mark.key("replay_storage")
def test_on_the_learners_device_the_same_is_learned() -> None:
    local, there = (weights_after_training(device_agent(replay_storage=where)) for where in ("local", "device"))
    for name, weights in local.items():
        np.testing.assert_allclose(there[name], weights, atol=1e-4)


@pytest.mark.key("replay_storage", "checkpoint_replay")
@pytest.mark.parametrize("resumed_in", ["device", "local"])
def test_frames_on_the_learners_device_are_in_checkpoints_and_come_back(resumed_in: str, tmp_path: Path) -> None:
    agent = device_agent(checkpoint_replay=True, compress_observations=False)
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    saved = [in_memory(state) for state in agent.optimizer.replay_states()]
    agent.stop()
    changes: dict[str, Any] = {"replay_storage": resumed_in, "checkpoint_replay": True, "compress_observations": False}
    resumed = device_agent(checkpoint=read_checkpoint(path), **changes)
    found = [in_memory(state) for state in resumed.optimizer.replay_states()]
    resumed.stop()
    assert sum(state["num_added"] for state in saved) > 0
    for before, after in zip(saved, found, strict=True):
        np.testing.assert_equal(after, before)
