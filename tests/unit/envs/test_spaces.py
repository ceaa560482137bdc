"""Which spaces can be played; envs get actions within their bounds, while the agent keeps those it has chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.common import ActionScaling
from rlexp.config.keys.ddpg import CriticKeys, TD3Config
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.sac import SACConfig
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.envs.make import make_env, make_filmed_env, make_vector_env
from rlexp.envs.registry import EnvConfig, FrameConfig, env_config_of
from rlexp.envs.spaces import DiscreteActions, bound_actions, check_spaces, is_byte_vector
from rlexp.errors import UsageError
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV, ImageEnv

ECHO_ENV = "tests.unit.envs.test_spaces:EchoEnv"
SCALINGS: tuple[ActionScaling, ...] = ("normalized", "clipped")


class EchoEnv(gym.Env[Any, Any]):
    """Remembers the actions it got, and writes into them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as in Gymnasium's envs)
    observation_space = Box(-np.inf, np.inf, (2, 2), np.float64)

    def __init__(self, render_mode: str | None = None, space: Box | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = space or Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
        self.actions: list[NDArray[Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((2, 2)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action.copy())
        if action.shape:
            action[...] = 77
        return np.zeros((2, 2)), 0.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def got(space: Box, scaling: ActionScaling | None, actions: NDArray[Any]) -> NDArray[Any]:
    """Return the actions ``[M, ...]`` that M envs with the action space ``space`` get."""
    vector = SyncVectorEnv([lambda: EchoEnv(space=space)] * len(actions))
    bounded = bound_actions(vector, scaling)
    bounded.reset()
    bounded.step(actions)
    return np.stack([env.unwrapped.actions[0] for env in vector.envs])  # type: ignore[attr-defined]


TWO = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
DRAWN = np.array([[-1, -1], [0, 0], [1, 1], [0.5, -0.5], [3, -7]], np.float32)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ("normalized", [[-2, 0], [0, 5], [2, 10], [1, 2.5], [2, 0]]),
        ("clipped", [[-1, 0], [0, 0], [1, 1], [0.5, 0], [2, 0]]),
        (None, DRAWN.tolist()),
    ],
)
def test_bounded_actions_of_each_scaling(scaling: ActionScaling | None, expected: list[list[float]]) -> None:
    assert got(TWO, scaling, DRAWN.copy()).tolist() == expected


@pytest.mark.parametrize("scaling", SCALINGS)
def test_bounded_actions_leave_drawn_actions_unchanged(scaling: ActionScaling) -> None:
    actions = np.array([[0.5, 0.5]], np.float32)
    got(TWO, scaling, actions)
    assert actions.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_bounded_actions_have_shape_and_dtype_of_the_env(scaling: ActionScaling, dtype: Any, shape: Any) -> None:
    space = Box(-0.3, 0.7, shape, dtype)
    actions = np.linspace(-3, 3, 7).reshape(7, *[1] * len(shape)) * np.ones(shape)
    for drawn in (actions, actions.astype(np.float32)):
        played = got(space, scaling, drawn)
        assert (played.dtype, played.shape) == (dtype, (7, *shape))
        assert all(space.contains(np.array(action, dtype)) for action in played)
        assert (played[0] == space.low).all()
        assert (played[-1] == space.high).all()


def test_normalized_actions_without_two_finite_bounds_are_only_clipped() -> None:
    low, high = np.array([-np.inf, -np.inf, -2, -8]), np.array([np.inf, 2, np.inf, 8])
    actions = np.array([[-5.0, -5, -5, -0.5], [5, 5, 5, 0.5], [0.25, 0.25, 0.25, 5]])
    expected = [[-5, -5, -2, -4], [5, 2, 5, 4], [0.25, 0.25, 0.25, 8]]
    assert got(Box(low, high, dtype=np.float64), "normalized", actions).tolist() == expected


def test_normalized_actions_of_the_widest_float32_box() -> None:
    most = np.finfo(np.float32).max
    played = got(Box(-most, most, (1,), np.float32), "normalized", np.array([[-1.0], [0], [1], [4]], np.float32))
    assert played.tolist() == [[-most], [0.0], [most], [most]]


@pytest.mark.parametrize("scaling", [*SCALINGS, None])
def test_bounded_actions_do_not_hide_nan(scaling: ActionScaling | None) -> None:
    played = got(TWO, scaling, np.array([[np.nan, 0.5]], np.float32))
    assert np.isnan(played).tolist() == [[True, False]]


numbers = st.floats(-1e6, 1e6, width=32)


@given(st.tuples(numbers, numbers).map(sorted), st.lists(numbers, min_size=1, max_size=5))
def test_normalized_actions_follow_the_formula(bounds: list[float], drawn: list[float]) -> None:
    low, high = bounds
    played = got(Box(low, high, (1,), np.float32), "normalized", np.array(drawn, np.float32)[:, None])
    for action, (result,) in zip(drawn, played.tolist(), strict=True):
        assert low <= result <= high
        assert result == pytest.approx(min(max(low + (action + 1) / 2 * (high - low), low), high), rel=1e-6, abs=0.2)


@pytest.mark.parametrize("space", [Discrete(3), Box(-3, 3, (2,), np.int8)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_bound_actions_leaves_other_spaces_unchanged(space: Any, scaling: ActionScaling) -> None:
    vector = SyncVectorEnv([lambda: EchoEnv(space=space)])
    assert bound_actions(vector, scaling) is vector


def test_vector_env_bounds_actions_and_keeps_the_action_space() -> None:
    config = EnvConfig(ECHO_ENV, continuous_actions="normalized")
    for env in (make_vector_env(config, 2), make_filmed_env(config)):
        assert env.single_action_space == TWO
        assert env.single_observation_space.shape == (4,)
        assert env.action_space.shape == (env.num_envs, 2)
        env.reset(seed=0)
        env.step(np.ones((env.num_envs, 2), np.float32))
        assert [env.unwrapped.actions[-1].tolist() for env in env.unwrapped.envs] == [[2, 10]] * env.num_envs  # type: ignore[attr-defined]


def test_discretized_actions_are_not_scaled_again() -> None:
    config = EnvConfig("Pendulum-v1", discretize_actions=3, continuous_actions="normalized")
    assert make_vector_env(config, 1).single_action_space == Discrete(3)
    assert make_vector_env(EnvConfig(COUNTING_ENV, continuous_actions="clipped"), 1) is not None


class NativeEcho(VectorEnv[Any, Any, Any]):
    """A vector env of its own kind that remembers the actions it got."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = self.observation_space = Box(0, 1, (2,))
        self.single_action_space = self.action_space = TWO
        self.got: Any = None

    def step(self, actions: Any) -> Any:
        self.got = actions
        flags = np.zeros((2, self.num_envs), bool)
        return np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs), *flags, {}


def test_actions_of_native_vector_envs_are_bounded() -> None:
    room = "tests.unit.envs.test_spaces"
    gym.register("NativeEcho-v0", entry_point=ECHO_ENV, vector_entry_point=f"{room}:NativeEcho")
    try:
        vector = make_vector_env(EnvConfig("NativeEcho-v0", continuous_actions="normalized"), 3)
    finally:
        del gym.registry["NativeEcho-v0"]
    vector.step(np.full((3, 2), 2, np.float32))
    assert vector.unwrapped.got.tolist() == [[2, 10]] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("run", AGENTS)
def test_env_config_of_takes_scaling_from_the_agent(run: str) -> None:
    config = AGENTS[run].model_fields["config"].annotation()  # type: ignore[misc]
    assert env_config_of("Pendulum-v1", config, NO_MODULES).continuous_actions == config.continuous_actions


def echo(low: Any, high: Any, dtype: Any = np.float32) -> EchoEnv:
    return EchoEnv(space=Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype))


def played(env: EchoEnv, bins: int) -> list[Any]:
    wrapped = DiscreteActions(env, "Echo-v0", bins)
    assert isinstance(wrapped.action_space, Discrete)
    for action in range(int(wrapped.action_space.n)):
        wrapped.step(np.int64(action))
    return [action.tolist() for action in env.actions]


def test_discrete_actions_divide_one_dimension_evenly() -> None:
    assert played(echo([-2.0], [2.0]), bins=5) == [[-2.0], [-1.0], [0.0], [1.0], [2.0]]


def test_discrete_actions_of_two_dimensions_are_a_grid() -> None:
    actions = played(echo([0.0, -1.0], [1.0, 1.0]), bins=3)
    assert len(actions) == 9
    assert sorted(actions) == sorted([first, second] for first in (0.0, 0.5, 1.0) for second in (-1.0, 0.0, 1.0))


def test_discrete_actions_keep_shape_and_dtype() -> None:
    env = echo([[0, 0], [0, 0]], [[1, 1], [1, 1]], np.int8)
    assert len(played(env, bins=2)) == 2**4
    assert all(action.shape == (2, 2) and action.dtype == np.int8 for action in env.actions)
    assert all(env.action_space.contains(action) for action in env.actions)


@pytest.mark.parametrize(
    ("low", "high", "bins", "expected"),
    [
        ([0], [255], 3, [[0], [128], [255]]),
        ([-3], [3], 3, [[-3], [0], [3]]),
        ([-5], [0], 4, [[-5], [-3], [-2], [0]]),
        ([0, 3], [1, 3], 5, [[0, 3], [1, 3]]),
    ],
)
def test_whole_numbers_are_rounded_and_come_once(low: Any, high: Any, bins: int, expected: Any) -> None:
    dtype = np.uint8 if low[0] >= 0 else np.int32
    assert played(echo(low, high, dtype), bins) == expected


def test_many_dimensions_of_few_whole_numbers_have_a_small_grid() -> None:
    assert len(DiscreteActions(echo([0] * 13, [1] * 13, np.int8), "Echo-v0", 5).grid) == 2**13
    with pytest.raises(UsageError, match=r"discretize_actions: 5 makes 16,384 actions of the 14 dimensions of"):
        DiscreteActions(echo([0] * 14, [1] * 14, np.int8), "Echo-v0", 5)


def test_discrete_actions_are_copies() -> None:
    env = echo([-1.0], [1.0])
    wrapped = DiscreteActions(env, "Echo-v0", 2)
    for _ in range(2):
        wrapped.step(0)
    assert [action.tolist() for action in env.actions] == [[-1.0], [-1.0]], "the env has written into the first one"


def test_discrete_actions_refuse_unbounded_dimensions() -> None:
    with pytest.raises(UsageError, match=r"Echo-v0 .* without bounds"):
        DiscreteActions(echo([-np.inf], [1.0]), "Echo-v0", 3)


def test_discrete_actions_refuse_large_grids() -> None:
    with pytest.raises(UsageError, match=r"762,939,453,125 actions .* Echo-v0") as caught:
        DiscreteActions(echo([-1.0] * 17, [1.0] * 17), "Echo-v0", 5)
    assert caught.value.hint is not None


def test_pendulum_with_discrete_actions() -> None:
    config = EnvConfig("Pendulum-v1", discretize_actions=5)
    vector = make_vector_env(config, 2)
    assert vector.single_action_space == make_env(config).action_space == Discrete(5)
    vector.reset(seed=0)
    obs, *_ = vector.step(np.array([0, 4]))
    assert obs.shape == (2, 3)


def test_discretize_actions_leaves_discrete_envs_unchanged() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV, discretize_actions=5), 1)
    assert vector.single_action_space == Discrete(1000)


MAZE = EnvConfig("Maze-v0", actions=DQNConfig().playable_actions)
MAZE_FOR_PPO = replace(MAZE, actions=PPOConfig().playable_actions)
VECTOR = Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(
    "observation_space", [VECTOR, Box(0, 9, (2, 3), np.int64), Discrete(5), Dict({"a": VECTOR, "b": Discrete(2)})]
)
def test_check_spaces_accepts_flattenable_observations(observation_space: gym.Space[object]) -> None:
    check_spaces(MAZE, observation_space, Discrete(2))


@pytest.mark.parametrize(
    ("action_space", "hint"), [(Box(-1.0, 1.0, (2,), np.float32), "discretize_actions"), (MultiDiscrete([2, 2]), "")]
)
def test_check_spaces_refuses_other_actions(action_space: gym.Space[object], hint: str) -> None:
    with pytest.raises(UsageError, match=r"env Maze-v0 .* DQN, APEX and PQN need a Discrete one") as caught:
        check_spaces(MAZE, VECTOR, action_space)
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("config", [SACConfig(), TD3Config()])
def test_check_spaces_refuses_what_agents_of_bounded_numbers_cannot_choose(config: CriticKeys) -> None:
    maze = replace(MAZE, actions=config.playable_actions)
    with pytest.raises(UsageError, match=r"need.? a Box of floating-point numbers"):
        check_spaces(maze, VECTOR, Box(-2, 3, (2,), np.int64))
    for unbounded in (
        Box(-np.inf, np.inf, (2,)),
        Box(np.array([0, -1], np.float32), np.array([np.inf, 1], np.float32)),
    ):
        with pytest.raises(UsageError, match="some of whose numbers have no bounds") as caught:
            check_spaces(maze, VECTOR, unbounded)
        assert caught.value.hint is not None
        assert "finite bounds" in caught.value.hint
    check_spaces(maze, VECTOR, Box(-2.0, 3.0, (), np.float64))


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
    with pytest.raises(UsageError, match="the agent needs a Discrete, MultiDiscrete, MultiBinary or Box one") as caught:
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
    check_spaces(EnvConfig("Maze-v0"), VECTOR, Box(-1.0, 1.0, (2,), np.float32))


def test_images_keep_their_shape() -> None:
    check_spaces(MAZE, Box(0, 255, (84, 84, 3), np.uint8), Discrete(2))
    assert make_vector_env(EnvConfig(IMAGE_ENV), 2).single_observation_space.shape == (84, 84, 3)


class ChannelsFirst(ImageEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (3, 84, 84), np.uint8)


@pytest.mark.parametrize("frames", [None, FrameConfig("rllib", 42, grayscale=False, framestack=True)])
def test_channels_first_images_are_refused(frames: FrameConfig | None) -> None:
    with pytest.raises(UsageError, match=r"\(3, 84, 84\), which look like \[channels, height, width\]"):
        make_env(EnvConfig("tests.unit.envs.test_spaces:ChannelsFirst", frames=frames))


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
    vector = make_vector_env(EnvConfig("FrozenLake-v1", {"is_slippery": False}), 2)
    assert vector.single_observation_space.shape == (16,)
    obs, _ = vector.reset(seed=0)
    assert obs.tolist() == np.eye(16)[[0, 0]].tolist()
    moved_right, *_ = vector.step(np.array([2, 2]))
    assert moved_right.tolist() == np.eye(16)[[1, 1]].tolist()


def test_tuple_observations_are_joined() -> None:
    vector = make_vector_env(EnvConfig("Blackjack-v1"), 2)
    obs, _ = vector.reset(seed=0)
    assert obs.shape == (2, 32 + 11 + 2)
    assert obs.sum(axis=1).tolist() == [3, 3]
