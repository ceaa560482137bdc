from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Sequence

from rlexp.config.keys.dqn import DQNConfig
from rlexp.envs import EnvConfig, FrameConfig, check_spaces, is_byte_vector, make_env, make_vector_env
from rlexp.errors import UsageError
from tests.envs import IMAGE_ENV, ImageEnv

MAZE = EnvConfig("Maze-v0", {}, None, actions=DQNConfig().playable_actions)
VECTOR = Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(
    "observation_space", [VECTOR, Box(0, 9, (2, 3), np.int64), Discrete(5), Dict({"a": VECTOR, "b": Discrete(2)})]
)
def test_what_can_be_laid_out_as_a_vector_can_be_played(observation_space: gym.Space[object]) -> None:
    check_spaces(MAZE, observation_space, Discrete(2))


@pytest.mark.parametrize("action_space", [Box(-1.0, 1.0, (2,), np.float32), MultiDiscrete([2, 2])])
def test_actions_that_are_not_discrete_are_refused(action_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError, match=r"env Maze-v0 .* DQN and APEX need a Discrete one") as caught:
        check_spaces(MAZE, VECTOR, action_space)
    assert caught.value.hint is not None
    assert caught.value.exit_code == 2


def test_an_algorithm_without_limits_can_play_any_action_space() -> None:
    check_spaces(EnvConfig("Maze-v0", {}, None), VECTOR, Box(-1.0, 1.0, (2,), np.float32))


def test_images_can_be_played_and_keep_their_shape() -> None:
    check_spaces(MAZE, Box(0, 255, (84, 84, 3), np.uint8), Discrete(2))
    assert make_vector_env(EnvConfig(IMAGE_ENV, {}, None), 2).single_observation_space.shape == (84, 84, 3)


def test_continuous_actions_are_told_the_key_that_makes_them_discrete() -> None:
    with pytest.raises(UsageError) as caught:
        check_spaces(MAZE, VECTOR, Box(-1.0, 1.0, (2,), np.float32))
    assert caught.value.hint is not None
    assert "discretize_actions" in caught.value.hint


class ChannelsFirst(ImageEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (3, 84, 84), np.uint8)


@pytest.mark.parametrize("frames", [None, FrameConfig("rllib", 42, grayscale=False, framestack=True)])
def test_images_with_their_channels_first_are_refused(frames: FrameConfig | None) -> None:
    with pytest.raises(UsageError, match=r"\(3, 84, 84\), which look like \[channels, height, width\]"):
        make_env(EnvConfig("tests.unit.envs.test_spaces:ChannelsFirst", {}, None, frames=frames))


@pytest.mark.parametrize("observation_space", [Graph(VECTOR, None), Sequence(VECTOR)])
def test_observations_without_a_fixed_size_are_refused(observation_space: gym.Space[object]) -> None:
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


def test_tuples_are_joined() -> None:
    vector = make_vector_env(EnvConfig("Blackjack-v1", {}, None), 2)
    obs, _ = vector.reset(seed=0)
    assert obs.shape == (2, 32 + 11 + 2)
    assert obs.sum(axis=1).tolist() == [3, 3]
