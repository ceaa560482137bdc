"""A run that goes on from a checkpoint does, bit by bit, what it would have done without a break.

A state that was changed after it was written is an error of the checkpoint, not of whoever continues from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.agent import Agent
from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.iteration import IterationBounds
from rlexp.agents.workers import check_counters
from rlexp.cluster.pool.pool import Actor, ActorLostError, InlineTaskPool, Ref, TaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import CheckpointError, TrialError
from rlexp.runs.checkpoint_contents import Checkpoint, read_checkpoint
from rlexp.sample_batch import OBS, Array
from tests.lab.agents import PlacementPool, make_agent, poll
from tests.lab.checkpoints import in_memory
from tests.lab.envs import COUNTING_ENV, OPAQUE_ENV, PIXEL_ENV


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    agent = make_agent()
    agent.train()
    path = agent.save(tmp_path_factory.mktemp("trial") / "checkpoint_000001", {})
    agent.stop()
    return read_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iteration", None),
        ("iteration", "1"),
        ("iteration", -1),
        ("iteration", math.nan),
        ("num_steps_sampled", 1e308),
        ("num_steps_sampled", 10**30),
        ("num_steps_trained", [1]),
        ("episodes_total", True),
        ("time_total_s", math.inf),
        ("time_total_s", "soon"),
    ],
)
def test_counts_that_no_run_has_are_refused_by_name(name: str, value: Any, checkpoint: Checkpoint) -> None:
    check_counters(checkpoint.path, checkpoint.state)
    with pytest.raises(CheckpointError, match=f"{name} in its state is not a"):
        make_agent(checkpoint=replace(checkpoint, state={**checkpoint.state, name: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "x"},
        {"source": {"a": 1}},
        {"source": {"$array": "missing"}},
        {"episodes": []},
        {"replay": {"x": 1}},
        {"replay": 3},
    ],
    ids=json.dumps,
)
def test_state_of_another_form_is_refused(change: dict[str, Any], checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="does not hold the state of this agent"):
        make_agent(checkpoint=replace(checkpoint, state={**checkpoint.state, **change}))


def test_learner_without_its_arrays_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="does not hold the state of this agent"):
        make_agent(checkpoint=replace(checkpoint, arrays={**checkpoint.arrays, "learner": {}}))


def test_an_unchanged_state_is_loaded(checkpoint: Checkpoint, tmp_path: Path) -> None:
    agent = make_agent(checkpoint=checkpoint)
    assert agent.train()["training_iteration"] == 2
    agent.stop()


UPDATES = 20
"""Before the break, and after it."""
SMALL: Mapping[str, Any] = {
    "num_workers": 0,
    "model": {"fcnet_hiddens": [8]},
    "hiddens": [8],
    "num_envs_per_worker": 3,
    "sample_batch_size": 5,
    "train_batch_size": 16,
    "buffer_size": 500,
    "learning_starts": 40,
    "target_network_update_freq": 200,
    "exploration_final_eps": 0.2,
    "schedule_max_timesteps": 10_000,
    "timesteps_per_iteration": 150,
    "metrics_smoothing_episodes": 20,
    "min_iter_time_s": 0.0,
}
Make = Callable[..., DQNAgent[Any]]
TIMES = {
    *("time_total_s", "time_this_iter_s", "sample_throughput", "train_throughput", "bottleneck"),
    *("learner_wait_share", "learner_time_share", "worker_wait_share", "worker_time_share", "timers"),
}
"""Figures of the clock."""


def make_dqn_agent(env: str, changes: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> DQNAgent[Any]:
    return DQNAgent(env, DQNConfig.model_validate({**SMALL, **changes}), InlineTaskPool(), 3, checkpoint)


def num_updates_of(agent: Agent[Any]) -> int:
    with agent.optimizer.paused() as learner:
        return learner.num_updates


def train(agent: Agent[Any], num_updates: int) -> list[dict[str, Any]]:
    """Return the rows of the iterations up to the one with the update of that number."""
    rows = []
    while num_updates_of(agent) < num_updates:
        rows.append(agent.train())
    return rows


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: timeless(value) if isinstance(value, dict) else value for name, value in row.items() if name not in TIMES
    }


def make_apex(env: str, changes: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> ApexAgent:
    keys = {"n_step": 1, "optimizer": {"num_replay_buffer_shards": 2}, **SMALL, **changes}
    return ApexAgent(env, ApexConfig.model_validate(keys), InlineTaskPool(), 3, checkpoint)


def held(agent: DQNAgent[Any]) -> list[dict[str, Any]]:
    """Return what each shard holds: its rows with their keys, by slot, their priorities, and its random stream."""
    optimizer: Any = agent.optimizer
    is_apex = isinstance(agent, ApexAgent)
    shards = [shard.handle for shard in optimizer._shards] if is_apex else [optimizer._shard]
    held = []
    for shard, state in zip(shards, map(in_memory, optimizer.replay_states()), strict=True):
        rows = shard._sampler.rows
        told = {name: value for name, value in state.items() if not name.startswith("storage.")}
        held.append(told | dict(rows.read(np.arange(rows.size)).columns))
    return held


def assert_same_bits(found: Any, expected: Any) -> None:
    """Compare trees of dicts, lists, arrays and numbers; an array also by its type."""
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same_bits(found[name], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    else:
        assert found == expected or (found != found and expected != expected)


def assert_goes_on(env: str, changes: Mapping[str, Any], directory: Path, make: Make = make_dqn_agent) -> None:
    """Train twice so many updates, in one go and with a break, and compare all there is."""
    whole = make(env, changes)
    rows = train(whole, UPDATES)
    all_rows = rows + train(whole, 2 * UPDATES)

    first = make(env, changes)
    rows_before = train(first, UPDATES)
    path = first.save(directory / f"checkpoint_{len(rows):06d}", {})
    first.stop()
    second = make(env, changes, read_checkpoint(path))
    rows_after = train(second, 2 * UPDATES)

    assert_same_bits([timeless(row) for row in rows_before + rows_after], [timeless(row) for row in all_rows])
    with second.optimizer.paused() as learner, whole.optimizer.paused() as expected:
        assert_same_bits(learner.state_dict(), expected.state_dict())
    assert_same_bits(held(second), held(whole))
    assert_same_bits(second.optimizer.state(), whole.optimizer.state())
    for agent in (second, whole):
        assert agent.drain_events() == []
        agent.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prioritized_replay": False},
        {"n_step": 3, "worker_side_prioritization": True},
        {"noisy": True},
        {"observation_filter": "MeanStdFilter"},
        {"observation_filter": "MeanStdFilter", "timesteps_per_iteration": 33},
        {"observation_filter": "MeanStdFilter", "synchronize_filters": False, "n_step": 3},
        {"prioritized_replay": False, "n_step": 3, "noisy": True, "observation_filter": "MeanStdFilter"},
        {"parameter_noise": True, "sample_batch_size": 7},
        {"soft_q": True, "num_atoms": 5},
        {"batch_mode": "complete_episodes", "n_step": 2},
        {"training_intensity": 3.0, "num_envs_per_worker": 1},
        {"training_intensity": 0.5, "num_envs_per_worker": 1, "timesteps_per_iteration": 10},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "prioritized",
)
def test_a_run_with_a_break_is_the_run_without_one(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_goes_on("CartPole-v1", changes, tmp_path)


def interrupt(agent: DQNAgent[Any], steps: int) -> None:
    """Train until an interrupt that comes after so many env steps."""
    agent.train(should_stop=lambda: agent.optimizer.counters.num_steps_sampled >= steps)


def test_neither_time_nor_an_interrupt_decides_what_a_filter_sees(tmp_path: Path) -> None:
    changes = {"observation_filter": "MeanStdFilter", "timesteps_per_iteration": 40}
    whole, parts = make_dqn_agent("CartPole-v1", changes), make_dqn_agent("CartPole-v1", changes)
    while whole.optimizer.counters.num_steps_sampled < 400:
        whole.train()
    end = IterationBounds({"timesteps_total": whole.optimizer.counters.num_steps_sampled})
    for number in (1, 2, 3):
        interrupt(parts, parts.optimizer.counters.num_steps_sampled + 55)
        path = parts.save(tmp_path / f"checkpoint_{number:06d}", {})
        parts.stop()
        parts = make_dqn_agent("CartPole-v1", changes, read_checkpoint(path))
    while parts.optimizer.counters.num_steps_sampled < whole.optimizer.counters.num_steps_sampled:
        parts.train(bounds=end)
    with parts.optimizer.paused() as learner, whole.optimizer.paused() as expected:
        assert_same_bits(learner.state_dict(), expected.state_dict())
    for agent in (parts, whole):
        agent.stop()


@pytest.mark.parametrize("make", [make_dqn_agent, make_apex])
def test_more_learning_starts_than_a_checkpoint_has_rows_are_waited_for(make: Make, tmp_path: Path) -> None:
    few, many = ({"training_intensity": 8.0, "learning_starts": number} for number in (20, 2000))
    first = make("CartPole-v1", few)
    train(first, 20)
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    agent = make("CartPole-v1", many, read_checkpoint(path))
    before = num_updates_of(agent)
    while agent.optimizer.counters.num_steps_sampled < 1900:
        agent.train()
    assert num_updates_of(agent) - before <= 5  # what was owed
    while agent.optimizer.counters.num_steps_sampled < 2500:
        agent.train()
    assert num_updates_of(agent) > before + 100
    agent.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replay_storage": "actors"},
        {"optimizer": {"num_replay_buffer_shards": 2, "min_weight_publish_s": 0.05}},
        {"n_step": 3, "training_intensity": 8.0},
        {"training_intensity": 0.5, "num_envs_per_worker": 1, "timesteps_per_iteration": 10},
        {"optimizer": {"num_replay_buffer_shards": 3, "learner_queue_depth": 16, "max_weight_sync_delay": 1}},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "free",
)
def test_apex_without_workers_is_repeatable_and_continues_bit_by_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_goes_on("CartPole-v1", changes, tmp_path, make_apex)


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("Acrobot-v1", {"horizon": 40}),
        ("MountainCar-v0", {"n_step": 2}),
        ("FrozenLake-v1", {"n_step": 2}),
    ],
)
def test_so_it_is_in_envs_one_beside_the_other(env: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert_goes_on(env, changes, tmp_path)


def small_images(size: int) -> dict[str, Any]:
    """Return keys for an env of images, large enough to be kept as frames, and a network that sees them."""
    return {"env_config": {"size": size}, "preprocessor_pref": None, "model": {"conv_filters": [[4, [4, 4], 4]]}}


@pytest.mark.parametrize("compress", [False, True])
def test_so_it_is_with_frames(compress: bool, tmp_path: Path) -> None:
    keys = {**small_images(32), "compress_observations": compress, "n_step": 3, "buffer_size": 150}
    assert_goes_on(PIXEL_ENV, {**keys, "timesteps_per_iteration": 60}, tmp_path)


def test_without_its_replay_a_run_waits_for_it_again(tmp_path: Path) -> None:
    changes = {"checkpoint_replay": False, "training_intensity": 2.0}
    first = make_dqn_agent("CartPole-v1", changes)
    train(first, UPDATES)
    sampled = first.optimizer.counters.num_steps_sampled
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    second = make_dqn_agent("CartPole-v1", changes, read_checkpoint(path))
    row = second.train()
    second.stop()
    assert row["timesteps_total"] >= sampled + 150
    new_rows = held(second)[0]["num_added"]
    assert 0 < row["info"]["num_updates"] - num_updates_of(first) <= 2.0 * (new_rows - 40) / 16 + 3


def first_envs(agent: Agent[Any]) -> Array:
    """Return the ids of the envs whose steps come first, which a CountingEnv takes from its seed."""
    return np.unique(np.concatenate([batch[OBS][:, :2] for batch, _ in poll(agent)]), axis=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_new_episodes_are_others_than_the_first_ones(num_workers: int, tmp_path: Path) -> None:
    changes = {"num_workers": num_workers, "min_iter_time_s": 0.0}
    fresh = first_envs(make_dqn_agent(OPAQUE_ENV, changes))
    agent = make_dqn_agent(OPAQUE_ENV, changes)
    paths = []
    for iteration in (1, 2):
        agent.train()
        paths.append(agent.save(tmp_path / f"checkpoint_{iteration:06d}", {}))
    agent.stop()
    begun = [first_envs(make_dqn_agent(OPAQUE_ENV, changes, read_checkpoint(path))) for path in (*paths, paths[0])]
    for envs in begun:
        assert envs[:, 1].min() == 0
        assert not set(envs[:, 0]) & set(fresh[:, 0])
    assert not set(begun[0][:, 0]) & set(begun[1][:, 0])
    np.testing.assert_array_equal(begun[0], begun[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_envs_per_worker": 2},
        {"n_step": 3},
        {"sample_async": True},
        {"num_workers": 1},
        {"horizon": 5},
        {"seed": 9},
    ],
)
def test_where_it_plays_otherwise_it_begins_new_episodes(changes: dict[str, Any], tmp_path: Path) -> None:
    agent = make_dqn_agent(COUNTING_ENV, {})
    agent.train()
    playing = set(first_envs(agent)[:, 0])
    path = agent.save(tmp_path / "checkpoint_000001", {})
    agent.stop()
    same, other = (make_dqn_agent(COUNTING_ENV, changed, read_checkpoint(path)) for changed in ({}, changes))
    assert set(first_envs(same)[:, 0]) == playing
    envs = first_envs(other)
    assert not set(envs[:, 0]) & playing
    assert envs[:, 1].min() == 0
    other.train()
    other.stop()
    same.stop()


def test_a_checkpoint_from_before_these_states_loads(tmp_path: Path) -> None:
    first = make_dqn_agent("CartPole-v1", {})
    row = train(first, UPDATES)[-1]
    checkpoint = read_checkpoint(first.save(tmp_path / "checkpoint_000001", {}))
    held_before = held(first)
    first.stop()
    counters = ("iteration", "time_total_s", "episodes_total", "num_steps_sampled", "num_steps_trained", "replay")
    older = Checkpoint(
        checkpoint.path,
        checkpoint.sequence,
        {name: arrays for name, arrays in checkpoint.arrays.items() if name != "state"},
        {name: json.loads(json.dumps(checkpoint.state[name])) for name in counters},
        {},
    )
    second = make_dqn_agent("CartPole-v1", {}, older)
    assert_same_bits(held(second), held_before)
    next_row = second.train()
    assert next_row["training_iteration"] == row["training_iteration"] + 1
    assert next_row["timesteps_total"] > row["timesteps_total"]
    second.stop()


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(("env", "size"), [("CartPole-v1", None), (PIXEL_ENV, 32)])
def test_the_shards_of_apex_come_back_as_they_were(num_shards: int, env: str, size: int | None, tmp_path: Path) -> None:
    keys = {
        **SMALL,
        **(small_images(size) if size else {}),
        "replay_storage": "local",
        "optimizer": {"num_replay_buffer_shards": num_shards},
        "n_step": 3,
    }
    config = ApexConfig.model_validate(keys)
    agent = ApexAgent(env, config, PlacementPool(), 0)
    while num_updates_of(agent) < 10:
        agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    saved = [in_memory(state) for state in agent.optimizer.replay_states()]
    rng = agent.optimizer.state()["routing"]
    agent.stop()
    again = ApexAgent(env, config, PlacementPool(), 0, read_checkpoint(path))
    restored = [in_memory(state) for state in again.optimizer.replay_states()]
    assert len(saved) == num_shards
    assert min(state["num_added"] for state in saved) > 0
    assert_same_bits(restored, saved)
    assert again.optimizer.state()["routing"] == rng
    again.stop()


class LosingPool(PlacementPool):
    """Loses the shard that is asked for something, so many times."""

    def __init__(self, asked: str, losses: int) -> None:
        super().__init__()
        self._asked = asked
        self._losses = losses
        self._lost: Ref[Any] = Ref(None)

    def call(self, actor: Actor[Any], method: Callable[..., Any], *args: object) -> Ref[Any]:
        if method.__name__ == self._asked and self._losses:
            self._losses -= 1
            return self._lost
        return super().call(actor, method, *args)

    def get(self, ref: Ref[Any], timeout: float) -> Any:
        if ref is self._lost:
            raise ActorLostError("its process died")
        return super().get(ref, timeout)


def apex_with(pool: TaskPool) -> ApexAgent:
    keys = {**SMALL, "replay_storage": "actors", "optimizer": {"num_replay_buffer_shards": 2}}
    agent = ApexAgent("CartPole-v1", ApexConfig.model_validate(keys), pool, 0)
    while num_updates_of(agent) < 10:
        agent.train()
    return agent


def test_a_shard_that_is_lost_while_it_is_read_is_empty_in_the_checkpoint(tmp_path: Path) -> None:
    agent = apex_with(LosingPool("piece", losses=1))
    path = agent.save(tmp_path / "checkpoint_000001", {})
    (event,) = agent.drain_events()
    assert event.startswith("replay shard 0 failed: ")
    sizes = [state["num_added"] for state in read_checkpoint(path).state["replay"]]
    assert sizes[0] == 0 < sizes[1]
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    agent.train()
    agent.stop()


def test_shards_that_are_lost_again_and_again_fail_the_trial(tmp_path: Path) -> None:
    agent = apex_with(LosingPool("outline", losses=1000))
    with pytest.raises(TrialError, match="replay shards failed 11 times"):
        agent.save(tmp_path / "checkpoint_000001", {})
    assert list(tmp_path.iterdir()) == []
    agent.stop()


def test_another_agent_goes_on_with_the_replay_and_begins_the_rest_anew(tmp_path: Path) -> None:
    first = make_dqn_agent("CartPole-v1", {})
    train(first, 10)
    path = first.save(tmp_path / "checkpoint_000001", {})
    saved = held(first)
    first.stop()
    keys = {**SMALL, "optimizer": {"num_replay_buffer_shards": 1}}
    second = ApexAgent("CartPole-v1", ApexConfig.model_validate(keys), PlacementPool(), 0, read_checkpoint(path))
    assert_same_bits(held(second), saved)
    while num_updates_of(second) <= num_updates_of(first):
        second.train()
    second.stop()
