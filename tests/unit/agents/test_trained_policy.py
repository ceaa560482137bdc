"""Policies outside of training choose what the trained ones choose, for the env's own observations."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlexp
from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.trained_policy import TrainedPolicy
from rlexp.envs.atari import GAME_OVER
from rlexp.envs.make import make_vector_env
from rlexp.errors import CheckpointError, ResumeError, UsageError
from tests.unit.agents.sampled_env import NUM_STEPS, OBSERVATIONS, SampledEnv, fill_weights, saved_checkpoint

SEED = 5
IMAGES = {"model": {"fcnet_hiddens": [8], "dim": 8, "conv_filters": [[4, [4, 4], 2]]}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vector": ("DQN", {}),
    "matrix": ("PPO", {"env_config": {"observations": "matrix"}}),
    "number": ("DQN", {"env_config": {"observations": "number"}}),
    "dict": ("DQN", {"env_config": {"observations": "dict"}}),
    "tuple": ("PPO", {"env_config": {"observations": "tuple"}}),
    "image": ("DQN", {"env_config": {"observations": "image"}, **IMAGES}),
    "filter": ("PPO", {"observation_filter": "MeanStdFilter"}),
    "discretised": ("DQN", {"env_config": {"actions": "box"}, "discretize_actions": 5}),
    "normalized": ("PPO", {"env_config": {"actions": "box"}, "normalize_actions": True}),
    "clipped": ("PPO", {"env_config": {"actions": "box"}, "normalize_actions": False, "clip_actions": True}),
    "normalised layers": ("PQN", {"model": {"fcnet_hiddens": [16, 8]}}),
    "normalised image": ("PQN", {"env_config": {"observations": "image"}, **IMAGES}),
    "multi-discrete": ("PPO", {"env_config": {"actions": "multi-discrete"}}),
}


def rewards_in_training(path: Path) -> list[float]:
    """Return the rewards of an episode that is played as evaluations play, in the vector env of the training."""
    loaded = LoadedCheckpoint.load(path)
    restored = loaded.policy()
    player = restored.filters.applied_to(restored.policy)
    vector = make_vector_env(loaded.env_config, 1)
    obs, _ = vector.reset(seed=SEED)
    rewards = []
    for _ in range(NUM_STEPS):
        obs, reward, _, _, _ = vector.step(player.compute_actions(obs))
        rewards.append(float(reward[0]))
    vector.close()
    return rewards


def rewards_outside(policy: TrainedPolicy, env: gym.Env[Any, Any]) -> list[float]:
    obs, _ = env.reset(seed=SEED)
    rewards, truncated = [], False
    while not truncated:
        obs, reward, _, truncated, _ = env.step(policy.act(obs))
        rewards.append(float(reward))
    return rewards


@pytest.mark.parametrize("case", CASES)
def test_act_plays_the_own_env_as_training_plays_the_wrapped_one(case: str, tmp_path: Path) -> None:
    run, config = CASES[case]
    path = saved_checkpoint(tmp_path, run, **config)
    policy = rlexp.load_policy(path)
    expected = rewards_in_training(path)
    assert len(set(expected)) > 1  # else a wrong action would not be seen
    own = SampledEnv(**config.get("env_config", {}))
    assert policy.observation_space == own.observation_space
    assert policy.action_space == own.action_space
    np.testing.assert_allclose(rewards_outside(policy, own), expected, rtol=1e-5)
    np.testing.assert_allclose(rewards_outside(policy, policy.make_env()), expected, rtol=1e-5)


@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_act_batch_chooses_as_act(observations: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "env_config": {"observations": observations},
        **(IMAGES if observations == "image" else {}),
    }
    policy = rlexp.load_policy(saved_checkpoint(tmp_path, "PPO", **config))
    space = OBSERVATIONS[observations]
    space.seed(1)
    rows = [space.sample() for _ in range(5)]
    single = [policy.act(row) for row in rows]
    empty: Any = gym.vector.utils.create_empty_array(space, 5)
    batch = gym.vector.utils.concatenate(space, rows, empty)
    assert policy.act_batch(rows).tolist() == single
    assert policy.act_batch(batch).tolist() == single


def test_discrete_actions_are_numbers_that_the_env_takes(tmp_path: Path) -> None:
    policy = rlexp.load_policy(saved_checkpoint(tmp_path, "DQN"))
    assert policy.action_space.contains(policy.act(np.zeros(3, np.float32)))
    assert policy.act([0.0, 0.5, 1.0]) == policy.act(
        np.array([0.0, 0.5, 1.0])
    )  # lists and float64, as envs return them


@pytest.mark.parametrize(
    ("observations", "wrong", "message"),
    [
        ("vector", np.zeros(4), "expected shape (3,) and dtype float32, given shape (4,) and dtype float64"),
        ("vector", [0.0, [1.0], 2.0], "expected shape (3,) and dtype float32, given list [0.0, [1.0], 2.0]"),
        ("vector", np.array([0.0, np.nan, 0.0]), "expected finite numbers of dtype float32, given nan among them"),
        ("vector", np.array([0.0, 1e300, 0.0]), "expected finite numbers of dtype float32, given inf among them"),
        ("image", np.zeros((16, 12, 3)), "expected shape (16, 12, 3) and dtype uint8, given shape (16, 12, 3) and"),
        ("number", 5, "expected Discrete(5), given int 5"),
        ("dict", {"place": np.zeros(2)}, "expected a dict with the keys ['place', 'room'], given ['place']"),
        ("dict", {"place": np.zeros(3), "room": 1}, "observation['place']: expected shape (2,) and dtype float32"),
        ("tuple", (np.zeros(3, np.int8),), "expected a tuple of 2 parts, given tuple"),
    ],
)
def test_act_says_what_was_expected_and_given(observations: str, wrong: Any, message: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "env_config": {"observations": observations},
        **(IMAGES if observations == "image" else {}),
    }
    policy = rlexp.load_policy(saved_checkpoint(tmp_path, "PPO", **config))
    with pytest.raises(UsageError) as caught:
        policy.act(wrong)
    assert message in caught.value.message


def test_act_batch_refuses_other_batches(tmp_path: Path) -> None:
    policy = rlexp.load_policy(saved_checkpoint(tmp_path, "DQN", env_config={"observations": "dict"}))
    others: list[Any] = [{"place": np.zeros((2, 2))}, 3, []]
    for wrong in others:
        with pytest.raises(UsageError, match=r"not a batch of|no observations"):
            policy.act_batch(wrong)


def test_atari_frames_come_from_make_env(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    config = {"model": {"fcnet_hiddens": [8], "dim": 42, "conv_filters": [[4, [8, 8], 8]]}, "buffer_size": 100}
    policy = rlexp.load_policy(saved_checkpoint(tmp_path, "DQN", "ALE/Pong-v5", **config))
    with pytest.raises(UsageError, match=r"expected shape \(42, 42, 4\)") as caught:
        policy.act(np.zeros((210, 160, 3), np.uint8))
    assert "policy.make_env()" in str(caught.value.hint)
    env = policy.make_env()
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        obs, _, _, _, info = env.step(policy.act(obs))
    assert obs.shape == (42, 42, 4)
    assert GAME_OVER in info
    env.close()


def test_explore_draws_as_evaluations_do(tmp_path: Path) -> None:
    path = saved_checkpoint(tmp_path, "DQN", evaluation_config={"explore": True}, exploration_final_eps=0.5)
    obs = np.zeros(3, np.float32)

    def drawn(**options: Any) -> list[int]:
        policy = rlexp.load_policy(path, **options)
        assert policy.metadata.explores == options.get("explore", False)
        return [int(policy.act(obs)) for _ in range(200)]

    assert len(set(drawn())) == 1
    assert len(set(drawn(explore=True, seed=1))) > 1
    assert drawn(explore=True, seed=1) == drawn(explore=True, seed=1) != drawn(explore=True, seed=2)
    assert drawn(explore=True) == drawn(explore=True)
    batch = rlexp.load_policy(path, explore=True, seed=1).act_batch(np.zeros((300, 3), np.float32))
    assert len(set(batch.tolist())) > 1


def test_copies_by_pickle_act_alike(tmp_path: Path) -> None:
    for run, config in (CASES["discretised"], CASES["normalized"], CASES["image"], CASES["filter"]):
        policy = rlexp.load_policy(saved_checkpoint(tmp_path / str(config), run, **config))
        copy = pickle.loads(pickle.dumps(policy))  # noqa: S301 (of ours)
        obs = policy.observation_space.sample()
        np.testing.assert_array_equal(copy.act(obs), policy.act(obs))
        assert copy.metadata == policy.metadata


def test_path_of_a_trial_and_metadata(tmp_path: Path) -> None:
    path = saved_checkpoint(tmp_path, "PPO")
    policy = rlexp.load_policy(str(path))
    about = policy.metadata
    assert (about.checkpoint, about.run, about.env, about.iteration, about.seed) == (
        path,
        "PPO",
        policy.env_id,
        1,
        7,
    )
    assert repr(policy) == f"<TrainedPolicy PPO {policy.env_id}, iteration 1, {path}>"
    with pytest.raises(ResumeError, match="does not exist"):
        rlexp.load_policy(tmp_path / "nothing")


def test_diverged_weights_are_named(tmp_path: Path) -> None:
    path = saved_checkpoint(tmp_path, "DQN")
    fill_weights(path, lambda array: 1e20)
    policy = rlexp.load_policy(path)
    with pytest.raises(CheckpointError, match=r"of its weights, weights/\S+ has the largest, 1e\+20"):
        policy.act(np.ones(3, np.float32))


@pytest.mark.parametrize("run", ["DQN", "PPO", "PQN"])
def test_small_networks_need_neither_torch_nor_ray(run: str, tmp_path: Path) -> None:
    path = saved_checkpoint(tmp_path, run, "CartPole-v1")
    program = (
        "import sys, rlexp, gymnasium\n"
        f"policy = rlexp.load_policy({str(path)!r})\n"
        "obs, _ = gymnasium.make('CartPole-v1').reset(seed=1)\n"
        "policy.act(obs), policy.act_batch([obs, obs])\n"
        "print(sorted({'torch', 'ray', 'typer'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[]\n", done.stderr
