from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Tuple

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.envs import EnvConfig, FrameConfig, check_spaces, is_byte_vector, make_env, make_vector_env
from rlexp.errors import UsageError
from tests.envs import IMAGE_ENV, ImageEnv

MAZE = EnvConfig("Maze-v0", {}, None, actions=DQNConfig().playable_actions)
VECTOR = Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(
    "observation_space", [VECTOR, Box(0, 9, (2, 3), np.int64), Discrete(5), Dict({"a": VECTOR, "b": Discrete(2)})]
)
def test_check_spaces_accepts_flattenable_observations(observation_space: gym.Space[object]) -> None:
    check_spaces(MAZE, observation_space, Discrete(2))


@pytest.mark.parametrize("action_space", [Box(-1.0, 1.0, (2,), np.float32), MultiDiscrete([2, 2])])
def test_check_spaces_refuses_other_actions(action_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError, match=r"env Maze-v0 .* DQN and APEX need a Discrete one") as caught:
        check_spaces(MAZE, VECTOR, action_space)
    assert caught.value.hint is not None
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("action_space", [VECTOR, Discrete(2), MultiDiscrete([2, 3]), MultiBinary(3)])
def test_check_spaces_accepts_arrays_of_numbers_for_ppo(action_space: gym.Space[object]) -> None:
    check_spaces(replace(MAZE, actions=PPOConfig().playable_actions), VECTOR, action_space)


@pytest.mark.parametrize("action_space", [Tuple((Discrete(2), VECTOR)), Dict({"a": VECTOR})])
def test_check_spaces_refuses_nested_actions_for_ppo(action_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError, match="PPO needs a Discrete, MultiDiscrete, MultiBinary or Box one") as caught:
        check_spaces(replace(MAZE, actions=PPOConfig().playable_actions), VECTOR, action_space)
    assert caught.value.hint is not None
    assert "one array of numbers" in caught.value.hint


def test_check_spaces_accepts_any_actions_without_capability() -> None:
    check_spaces(EnvConfig("Maze-v0", {}, None), VECTOR, Box(-1.0, 1.0, (2,), np.float32))


def test_images_keep_their_shape() -> None:
    check_spaces(MAZE, Box(0, 255, (84, 84, 3), np.uint8), Discrete(2))
    assert make_vector_env(EnvConfig(IMAGE_ENV, {}, None), 2).single_observation_space.shape == (84, 84, 3)


def test_check_spaces_hint_names_discretize_actions() -> None:
    with pytest.raises(UsageError) as caught:
        check_spaces(MAZE, VECTOR, Box(-1.0, 1.0, (2,), np.float32))
    assert caught.value.hint is not None
    assert "discretize_actions" in caught.value.hint


class ChannelsFirst(ImageEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (3, 84, 84), np.uint8)


@pytest.mark.parametrize("frames", [None, FrameConfig("rllib", 42, grayscale=False, framestack=True)])
def test_channels_first_images_are_refused(frames: FrameConfig | None) -> None:
    with pytest.raises(UsageError, match=r"\(3, 84, 84\), which look like \[channels, height, width\]"):
        make_env(EnvConfig("tests.unit.envs.test_spaces:ChannelsFirst", {}, None, frames=frames))


@pytest.mark.parametrize("observation_space", [Graph(VECTOR, None), Sequence(VECTOR)])
def test_check_spaces_refuses_observations_without_fixed_size(observation_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError, match=r"env Maze-v0 .* cannot be turned into numbers"):
        check_spaces(MAZE, observation_space, Discrete(2))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box(0, 255, (128,), np.uint8), True),
        (Box(0, 1, (128,), np.uint8), False),
        (Box(0, 255, (128,), np.float32), False),
        (Box(0, 255, (84, 84, 3), np.uint8), False),
        (Discrete(5), False),
    ],
)
def test_byte_vectors_are_bytes_of_the_whole_range(space: gym.Space[object], expected: bool) -> None:
    assert is_byte_vector(space) is expected


def test_discrete_observations_become_one_hot() -> None:
    vector = make_vector_env(EnvConfig("FrozenLake-v1", {"is_slippery": False}, None), 2)
    assert vector.single_observation_space.shape == (16,)
    obs, _ = vector.reset(seed=0)
    assert obs.tolist() == np.eye(16)[[0, 0]].tolist()
    moved_right, *_ = vector.step(np.array([2, 2]))
    assert moved_right.tolist() == np.eye(16)[[1, 1]].tolist()


def test_tuple_observations_are_joined() -> None:
    vector = make_vector_env(EnvConfig("Blackjack-v1", {}, None), 2)
    obs, _ = vector.reset(seed=0)
    assert obs.shape == (2, 32 + 11 + 2)
    assert obs.sum(axis=1).tolist() == [3, 3]
