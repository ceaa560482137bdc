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
MAZE_FOR_PPO = replace(MAZE, actions=PPOConfig().playable_actions)
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


PPO_CAN_PLAY = [
    VECTOR,
    Box(-np.inf, np.inf, (2, 2), np.float64),
    Box(np.array([-np.inf, 0], np.float16), np.array([1, np.inf], np.float16), dtype=np.float16),
    Box(-3, 3, (2,), np.int8),
    Box(0, 255, (4,), np.uint8),
    Discrete(2),
    MultiDiscrete([2, 3]),
    MultiDiscrete(np.array([[2, 3], [4, 5]])),
    MultiDiscrete([2, 3], start=[-1, 7]),
    MultiBinary(3),
    MultiBinary([2, 2]),
]


@pytest.mark.parametrize("action_space", PPO_CAN_PLAY, ids=str)
def test_check_spaces_accepts_arrays_of_numbers_for_ppo(action_space: gym.Space[object]) -> None:
    check_spaces(MAZE_FOR_PPO, VECTOR, action_space)


@pytest.mark.parametrize("action_space", [Tuple((Discrete(2), VECTOR)), Dict({"a": VECTOR})])
def test_check_spaces_refuses_nested_actions_for_ppo(action_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError, match="PPO needs a Discrete, MultiDiscrete, MultiBinary or Box one") as caught:
        check_spaces(MAZE_FOR_PPO, VECTOR, action_space)
    assert caught.value.hint is not None
    assert "one array of numbers" in caught.value.hint


@pytest.mark.parametrize(
    ("action_space", "together"),
    [
        (Tuple((Discrete(3), MultiBinary(2))), "MultiDiscrete([3, 2, 2])"),
        (Dict({"a": MultiDiscrete([2, 5]), "b": Dict({"c": Box(0, 3, (1,), np.int8)})}), "MultiDiscrete([2, 5, 4])"),
        (Dict({"a": VECTOR, "b": Tuple((VECTOR, VECTOR))}), "a Box of 9 numbers"),
    ],
)
def test_check_spaces_hint_for_nested_actions_has_one_space(action_space: gym.Space[object], together: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_spaces(MAZE_FOR_PPO, VECTOR, action_space)
    assert str(caught.value.hint).endswith(f"such as MultiDiscrete; its parts together are {together}")
    with pytest.raises(UsageError) as caught:
        check_spaces(MAZE, VECTOR, action_space)
    assert together not in str(caught.value.hint)


@pytest.mark.parametrize("action_space", [Dict({"a": VECTOR, "b": Discrete(2)}), Tuple(()), Graph(VECTOR, None)])
def test_check_spaces_hint_names_no_space_where_none_fits(action_space: gym.Space[object]) -> None:
    with pytest.raises(UsageError) as caught:
        check_spaces(MAZE_FOR_PPO, VECTOR, action_space)
    assert "its parts" not in str(caught.value.hint)


@pytest.mark.parametrize(
    ("action_space", "message"),
    [
        (Box(-(2**63), 2**63 - 1, (1,), np.int64), "whole numbers have 18,446,744,073,709,551,616 values together"),
        (Box(0, 255, (210, 160, 3), np.uint8), "whole numbers have 25,804,800 values together"),
        (MultiDiscrete([60_000, 60_000]), "whole numbers have 120,000 values together; 100,000 are the limit"),
        (Box(0, 1, (3,), np.bool_), "is a Box of bool"),  # type: ignore[arg-type]
        (Box(0, 1, (0,), np.float32), "empty action space"),
        (MultiDiscrete(np.zeros(0, np.int64)), "empty action space"),
        (Discrete(3, start=1), "does not start at 0"),
    ],
    ids=lambda value: str(value).split("\n", maxsplit=1)[0],
)
def test_check_spaces_refuses_actions_without_a_network_for_ppo(action_space: gym.Space[object], message: str) -> None:
    with pytest.raises(UsageError, match=f"env Maze-v0 .*{message}") as caught:
        check_spaces(MAZE_FOR_PPO, VECTOR, action_space)
    assert caught.value.hint is not None


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
