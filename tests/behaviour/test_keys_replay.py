"""The keys that say what replay holds, how it keeps it and what is drawn; each test fails where its key is ignored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.torch.device import DeviceBatch
from rlexp.cluster.pool.nodes import TrialGroup
from rlexp.cluster.pool.pool import Resources
from rlexp.config.keys.apex import ApexConfig
from rlexp.replay.rows import STORAGE_PREFIX
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import IMPORTANCE_WEIGHTS, OBS, Array, SampleBatch, WrittenRows
from tests.lab.agents import (
    MAKERS,
    SMALL,
    STEPS,
    PlacementPool,
    Update,
    absolute_td_errors,
    both_agents,
    checkpoint_of,
    make_dqn,
    network_of,
    poll_sent,
    stopped_in_the_end,
    train_until,
    updates_of,
    watched,
    weights_of,
)
from tests.lab.checkpoints import in_memory
from tests.lab.envs import COUNTING_ENV, IDENTITY_ENV, PIXEL_ENV
from tests.lab.experiment_files import conflicts

SURPRISING, DULL = 16.0, 1.0
"""TD errors of two kinds of rows."""


def states(agent: DQNAgent[Any]) -> list[dict[str, Any]]:
    return [in_memory(state) for state in agent.optimizer.replay_states()]


@pytest.mark.key("buffer_size")
@pytest.mark.parametrize("buffer_size", [100, 300])
def test_replay_holds_the_newest_rows(buffer_size: int) -> None:
    agent = make_dqn(buffer_size=buffer_size, num_envs_per_worker=1, sample_batch_size=20)
    ages = [update.num_steps_sampled - update.batch[OBS][:, 2].min() for update in updates_of(agent, 40)]
    assert 0.8 * buffer_size < max(ages) <= buffer_size
    assert agent.optimizer.stats()["replay_fill_per_shard"] == [1.0]
    assert [state["capacity"] for state in states(agent)] == [buffer_size]


@pytest.mark.key("buffer_size", "optimizer.num_replay_buffer_shards")
def test_shards_hold_it_together() -> None:
    agent = MAKERS["APEX"](buffer_size=100, optimizer={"num_replay_buffer_shards": 2}, learning_starts=2)
    agent.train(lambda: agent.optimizer.counters.num_steps_sampled >= 600)
    assert agent.optimizer.stats()["replay_fill_per_shard"] == [1.0, 1.0]
    assert [state["capacity"] for state in states(agent)] == [50, 50]


@pytest.mark.key("learning_starts")
@both_agents
@pytest.mark.parametrize(("learning_starts", "buffer_size"), [(41, 1000), (200, 1000), (200, 50)])
def test_learning_starts_with_so_many_rows(run: str, learning_starts: int, buffer_size: int) -> None:
    (first,) = updates_of(MAKERS[run](learning_starts=learning_starts, buffer_size=buffer_size), 1)
    assert first.num_steps_sampled >= learning_starts
    if run == "DQN":
        assert first.num_steps_sampled == math.ceil(learning_starts / 20) * 20


def surprise(batch: SampleBatch) -> Array:
    """Return TD errors by which the rows of one observation are surprising and all others dull."""
    return np.where(batch[OBS][:, 0] == 1, SURPRISING, DULL)


def by_surprise(run: str = "DQN", count: int = 60, **changes: Any) -> list[Update]:
    """Return updates on IdentityEnv, whose four observations are equally frequent."""
    return updates_of(
        MAKERS[run](IDENTITY_ENV, train_batch_size=64, worker_side_prioritization=False, **changes), count, surprise
    )


@pytest.mark.key("prioritized_replay_alpha")
@both_agents
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_ends_of_the_range_of_alpha_can_be_trained_with(run: str, alpha: float) -> None:
    assert updates_of(MAKERS[run](prioritized_replay_alpha=alpha), 3)


@pytest.mark.key("prioritized_replay")
@both_agents
@pytest.mark.parametrize("prioritized", [True, False])
def test_surprising_rows_are_drawn_more_often(run: str, prioritized: bool) -> None:
    updates = by_surprise(run, prioritized_replay=prioritized, prioritized_replay_alpha=1.0)[30:]
    share = np.mean([(update.batch[OBS][:, 0] == 1).mean() for update in updates])
    weights = np.concatenate([update.batch[IMPORTANCE_WEIGHTS] for update in updates])
    if prioritized:
        assert share > 0.4
        assert weights.min() < 0.5
    else:
        assert share == pytest.approx(0.25, abs=0.06)
        assert (weights == 1.0).all()


def priorities_after(td_error: float, **changes: Any) -> Array:
    """Return p^alpha of the rows of the last update, after which each had a TD error of ``td_error``."""
    agent = make_dqn(**changes)
    updates = watched(agent, lambda batch: np.full(len(batch), td_error))
    agent.train(lambda: len(updates) >= 3)
    (state,) = states(agent)
    agent.stop()
    return np.asarray(state["priorities_to_alpha"][updates[-1].batch["keys"]])


@pytest.mark.key("prioritized_replay_alpha")
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_alpha_is_the_exponent_of_the_priorities(alpha: float) -> None:
    assert priorities_after(9.0, prioritized_replay_alpha=alpha) == pytest.approx(9.0**alpha, rel=1e-5)


@pytest.mark.key("prioritized_replay_eps")
@pytest.mark.parametrize("eps", [1e-6, 0.25])
def test_eps_is_the_priority_of_a_row_without_surprise(eps: float) -> None:
    assert priorities_after(0.0, prioritized_replay_alpha=1.0, prioritized_replay_eps=eps) == pytest.approx(eps)


def stored_rows(state: dict[str, Any]) -> SampleBatch:
    return SampleBatch(
        {name.removeprefix(STORAGE_PREFIX): state[name] for name in state if name.startswith(STORAGE_PREFIX)}
    )


@pytest.mark.key("worker_side_prioritization")
@both_agents
@pytest.mark.parametrize("worker_side", [True, False])
def test_workers_give_new_rows_their_first_priority(run: str, worker_side: bool) -> None:
    changes = {"prioritized_replay_alpha": 1.0, "learning_starts": 1000}
    agent = MAKERS[run]("CartPole-v1", worker_side_prioritization=worker_side, **changes)
    agent.train()
    (state,) = states(agent)
    with agent.optimizer.paused() as learner:
        network = network_of(agent, learner.state_dict(), "network.")
    first = state["priorities_to_alpha"]
    expected = absolute_td_errors(stored_rows(state), network, network, network) if worker_side else np.ones(len(first))
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)


def betas(updates: list[Update]) -> list[tuple[int, float]]:
    """Return the trained steps before each update and the beta of its weights, where a surprising row was drawn.

    With alpha 1 a surprising row has the weight (DULL / SURPRISING)^beta.
    """
    lightest = [(update.num_steps_trained, float(update.batch[IMPORTANCE_WEIGHTS].min())) for update in updates]
    return [(trained, -math.log(weight) / math.log(SURPRISING)) for trained, weight in lightest if weight < 1.0]


@pytest.mark.key("prioritized_replay_beta")
@both_agents
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_beta_is_the_exponent_of_the_weights(run: str, beta: float) -> None:
    changes = {"prioritized_replay_beta": beta, "final_prioritized_replay_beta": None}
    found = betas(by_surprise(run, 20, prioritized_replay_alpha=1.0, **changes))
    assert len(found) > 5
    assert [each for _, each in found] == pytest.approx([beta] * len(found), rel=1e-3)


@pytest.mark.key("importance_weight_normalization")
@pytest.mark.parametrize(("normalization", "heaviest"), [("buffer", 1 / 16), ("batch", 1.0)])
def test_the_heaviest_row_of_replay_or_of_a_batch_has_weight_one(normalization: str, heaviest: float) -> None:
    def is_dull(batch: SampleBatch) -> Array:
        return np.asarray(batch["keys"] % 8 == 0)

    changes: dict[str, Any] = {"prioritized_replay_beta": 1.0, "final_prioritized_replay_beta": None}
    agent = make_dqn(importance_weight_normalization=normalization, prioritized_replay_alpha=1.0, **changes)
    updates = updates_of(agent, 60, lambda batch: np.where(is_dull(batch), 1 / 16, 1.0))
    drawn = next(index for index, update in enumerate(updates) if is_dull(update.batch).any())
    weights = [update.batch[IMPORTANCE_WEIGHTS] for update in updates[drawn + 1 :] if not is_dull(update.batch).any()]
    assert weights
    assert [float(each.max()) for each in weights] == pytest.approx([heaviest] * len(weights), rel=1e-3)


ANNEALED: dict[str, Any] = {"prioritized_replay_beta": 0.2, "final_prioritized_replay_beta": 0.8}


@pytest.mark.key(
    "final_prioritized_replay_beta",
    "beta_annealing_fraction",
    "schedule_max_timesteps",
    "prioritized_replay_beta_annealing_timesteps",
)
@pytest.mark.parametrize(
    ("changes", "timesteps"),
    [
        ({"beta_annealing_fraction": 0.5, "schedule_max_timesteps": 2000}, 1000),
        ({"beta_annealing_fraction": 0.25, "schedule_max_timesteps": 2000}, 500),
        ({"beta_annealing_fraction": 0.5, "schedule_max_timesteps": 4000}, 2000),
        ({"prioritized_replay_beta_annealing_timesteps": 800}, 800),
    ],
)
def test_beta_goes_to_its_final_value_over_trained_steps(changes: dict[str, Any], timesteps: int) -> None:
    found = betas(by_surprise(count=40, prioritized_replay_alpha=1.0, **ANNEALED, **changes))
    assert found[0][0] < timesteps < found[-1][0]
    for trained, beta in found:
        assert beta == pytest.approx(0.2 + 0.6 * min(trained / timesteps, 1.0), rel=1e-3)


@pytest.mark.key("final_prioritized_replay_beta")
@pytest.mark.parametrize(("final", "beta"), [(None, 0.2), (0.8, 0.8)])
def test_apex_ends_at_the_final_beta(final: float | None, beta: float) -> None:
    changes = {**ANNEALED, "final_prioritized_replay_beta": final, "prioritized_replay_beta_annealing_timesteps": 100}
    found = betas(by_surprise("APEX", 30, prioritized_replay_alpha=1.0, **changes))
    assert found[-1][1] == pytest.approx(beta, rel=1e-3)


@pytest.mark.key("checkpoint_replay")
@both_agents
@pytest.mark.parametrize("stored", [True, False, None])
def test_a_checkpoint_holds_the_replay(run: str, stored: bool | None, tmp_path: Path) -> None:
    changes = {"checkpoint_replay": stored, "optimizer": {"num_replay_buffer_shards": 2} if run == "APEX" else {}}
    agent = MAKERS[run]("CartPole-v1", **changes)
    updates = watched(agent)
    agent.train(lambda: len(updates) >= 5)
    checkpoint = checkpoint_of(agent, tmp_path)
    before = states(agent)
    restored = MAKERS[run]("CartPole-v1", checkpoint=checkpoint, **changes)
    after = states(restored)
    if stored is False:
        assert {state["num_added"] for state in after} == {0}
        return
    assert len(np.unique(before[0]["priorities_to_alpha"])) > 5
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        for name, value in old.items():
            np.testing.assert_equal(new[name], value)


@pytest.mark.key("checkpoint_replay")
@both_agents
@pytest.mark.parametrize(("largest", "stored"), [(10_000, False), (200_000, True)])
def test_by_default_a_checkpoint_holds_replay_that_is_small_when_it_is_full(
    run: str, largest: int, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.off_policy_agent.MOST_CHECKPOINTED_BYTES", largest)
    agent = MAKERS[run]("CartPole-v1", optimizer={"num_replay_buffer_shards": 2} if run == "APEX" else {})
    agent.train()
    assert 10_000 < agent.optimizer.replay_bytes() < 200_000
    checkpoint = checkpoint_of(agent, tmp_path)
    assert ("replay" in checkpoint.state) == stored


@pytest.mark.key("checkpoint_replay")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer": {"num_replay_buffer_shards": 2}}, "a replay state of 3 shards does not fit 2"),
        ({"buffer_size": 3000}, "a replay state of capacity 334 does not fit into 1000"),
        ({"prioritized_replay_alpha": 0.5}, "alpha 0.6 does not fit alpha 0.5"),
        ({"prioritized_replay": False}, "prioritized replay does not fit uniform replay"),
    ],
)
def test_replay_that_does_not_fit_begins_empty_and_is_filled_again(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"optimizer": {"num_replay_buffer_shards": 3}, "training_intensity": 2.0}
    agent = MAKERS["APEX"](**kept)
    agent.train()
    checkpoint = checkpoint_of(agent, tmp_path)
    restored = MAKERS["APEX"](checkpoint=checkpoint, **{**kept, **changes})
    assert {state["num_added"] for state in states(restored)} == {0}
    (event,) = restored.drain_events()
    assert event.startswith("replay starts empty")
    assert reason in event
    updates = watched(restored)
    train_until(restored, updates, 2)
    # A shard learns once its share of learning_starts is there: one fragment of STEPS, for one of several.
    assert updates[0].num_steps_sampled >= agent.optimizer.counters.num_steps_sampled + STEPS


def replay_bytes(env: str, **keys: Any) -> int:
    """Return the bytes of replay of an agent that has learned from it for an iteration."""
    small: dict[str, Any] = {"preprocessor_pref": None, "learning_starts": 8, "train_batch_size": 8, "buffer_size": 200}
    agent = make_dqn(env, timesteps_per_iteration=40, **small, **keys)
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
    monkeypatch.setattr("rlexp.agents.apex.data_path.available_cpus", lambda: cpus)
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
    monkeypatch.setattr("rlexp.agents.apex.data_path.available_cpus", lambda: cpus)
    monkeypatch.setattr("rlexp.agents.apex.data_path.trial_group", lambda: TrialGroup(21, frozenset(here)))
    config = ApexConfig(**{**SMALL, "num_workers": 20, "optimizer": {"num_replay_buffer_shards": 4}})
    pool = PlacementPool()
    agent = ApexAgent(COUNTING_ENV, config, pool, seed=0)
    agent.stop()
    assert (pool.placed["replay-0"] is not None) == own_processes


TWO_SHARDS: dict[str, Any] = {"train_batch_size": 32, "optimizer": {"num_replay_buffer_shards": 2}}


def shared_agent(env: str = COUNTING_ENV, checkpoint: Checkpoint | None = None, **changes: Any) -> ApexAgent:
    keys = {**SMALL, **TWO_SHARDS, "num_workers": 2, "replay_storage": "shared_memory", **changes}
    return stopped_in_the_end(ApexAgent(env, ApexConfig(**keys), PlacementPool(), 0, checkpoint))


def held_rows(agent: ApexAgent) -> list[tuple[float, ...]]:
    return [tuple(row) for state in states(agent) for row in state.get(STORAGE_PREFIX + OBS, ())]


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


@pytest.mark.key("replay_storage")
def test_in_shared_memory_as_many_rows_are_kept() -> None:
    agent = shared_agent(buffer_size=100)
    while min(nums_added(agent)) < 200:
        agent.train()
    assert agent.optimizer.stats()["replay_fill_per_shard"] == [1.0, 1.0]
    assert [state["capacity"] for state in agent.optimizer.replay_states()] == [50, 50]
    assert len(held_rows(agent)) == 100


@pytest.mark.key("replay_storage", "compress_observations")
def test_in_shared_memory_no_image_is_compressed() -> None:
    agent = shared_agent(PIXEL_ENV, preprocessor_pref=None, env_config={"size": 32}, compress_observations=True)
    while min(nums_added(agent)) == 0:
        agent.train()
    assert agent.optimizer.replay_bytes() > agent.config.buffer_size * 2 * 32 * 32 * 3


@pytest.mark.key("replay_storage")
def test_without_other_processes_there_is_nothing_to_share() -> None:
    agent = shared_agent(num_workers=0)
    assert all(isinstance(sent, SampleBatch) for sent, _ in poll_sent(agent))
    agent.train()


@pytest.mark.key("replay_storage", "checkpoint_replay")
def test_shared_rows_are_in_checkpoints_and_come_back(tmp_path: Path) -> None:
    agent = shared_agent(checkpoint_replay=True)
    agent.train()
    checkpoint, saved = checkpoint_of(agent, tmp_path), held_rows(agent)
    resumed = shared_agent(checkpoint=checkpoint, checkpoint_replay=True)
    assert sorted(held_rows(resumed)) == sorted(saved)
    assert len(saved) > 0
    resumed.train()
    assert len(held_rows(resumed)) > len(saved)


@pytest.mark.key("replay_storage")
def test_whole_episodes_fit_into_no_ring() -> None:
    (conflict,) = conflicts(ApexConfig, replay_storage="shared_memory", batch_mode="complete_episodes")
    assert conflict.keys == ("replay_storage", "batch_mode")
    assert "fragments of fixed length" in conflict.message


def device_agent(checkpoint: Checkpoint | None = None, **changes: Any) -> ApexAgent:
    image = {"preprocessor_pref": None, "env_config": {"size": 32}}
    keys = {**SMALL, **image, **TWO_SHARDS, "num_workers": 0, "replay_storage": "device", **changes}
    return stopped_in_the_end(ApexAgent(PIXEL_ENV, ApexConfig(**keys), PlacementPool(), 0, checkpoint))


def weights_after_training(agent: ApexAgent) -> dict[str, Any]:
    agent.train()
    weights = dict(weights_of(agent))
    agent.stop()
    assert agent.optimizer.counters.num_steps_trained > 0
    return weights


@pytest.mark.key("replay_storage", "compress_observations")
def test_on_the_learners_device_batches_have_their_observations_there() -> None:
    agent = device_agent(compress_observations=True)
    updates = watched(agent)
    agent.train()
    assert updates
    for update in updates:
        assert isinstance(update.batch, DeviceBatch)
        assert tuple(update.batch.tensors[OBS].shape) == (32, 32, 32, 3)
    assert agent.optimizer.replay_bytes() > agent.config.buffer_size * 32 * 32 * 3


@pytest.mark.key("replay_storage")
def test_on_the_learners_device_the_same_is_learned() -> None:
    local, there = (weights_after_training(device_agent(replay_storage=where)) for where in ("local", "device"))
    for name, weights in local.items():
        np.testing.assert_allclose(there[name], weights, atol=1e-4)


@pytest.mark.key("replay_storage", "checkpoint_replay")
@pytest.mark.parametrize("resumed_in", ["device", "local"])
def test_frames_on_the_learners_device_are_in_checkpoints_and_come_back(resumed_in: str, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoint_replay": True, "compress_observations": False}
    agent = device_agent(**kept)
    agent.train()
    checkpoint, saved = checkpoint_of(agent, tmp_path), states(agent)
    resumed = device_agent(checkpoint, replay_storage=resumed_in, **kept)
    found = states(resumed)
    assert sum(state["num_added"] for state in saved) > 0
    for before, after in zip(saved, found, strict=True):
        np.testing.assert_equal(after, before)
