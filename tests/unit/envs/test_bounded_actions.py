"""The envs get continuous actions within their bounds; the agent keeps the ones it has chosen."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.common import ActionScaling
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.envs import EnvConfig, env_config_of, make_filmed_env, make_vector_env
from rlexp.envs.spaces import bound_actions
from tests.envs import COUNTING_ENV

ECHO_ENV = "tests.unit.envs.test_bounded_actions:EchoEnv"
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
    config = EnvConfig(ECHO_ENV, {}, None, continuous_actions="normalized")
    for env in (make_vector_env(config, 2), make_filmed_env(config)):
        assert env.single_action_space == TWO
        assert env.single_observation_space.shape == (4,)
        assert env.action_space.shape == (env.num_envs, 2)
        env.reset(seed=0)
        env.step(np.ones((env.num_envs, 2), np.float32))
        assert [env.unwrapped.actions[-1].tolist() for env in env.unwrapped.envs] == [[2, 10]] * env.num_envs  # type: ignore[attr-defined]


def test_discretized_actions_are_not_scaled_again() -> None:
    config = EnvConfig("Pendulum-v1", {}, None, discretize_actions=3, continuous_actions="normalized")
    assert make_vector_env(config, 1).single_action_space == Discrete(3)
    assert make_vector_env(EnvConfig(COUNTING_ENV, {}, None, continuous_actions="clipped"), 1) is not None


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
    room = "tests.unit.envs.test_bounded_actions"
    gym.register("NativeEcho-v0", entry_point=ECHO_ENV, vector_entry_point=f"{room}:NativeEcho")
    try:
        vector = make_vector_env(EnvConfig("NativeEcho-v0", {}, None, continuous_actions="normalized"), 3)
    finally:
        del gym.registry["NativeEcho-v0"]
    vector.step(np.full((3, 2), 2, np.float32))
    assert vector.unwrapped.got.tolist() == [[2, 10]] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("run", AGENTS)
def test_env_config_of_takes_scaling_from_the_agent(run: str) -> None:
    config = AGENTS[run].model_fields["config"].annotation()  # type: ignore[misc]
    assert env_config_of("Pendulum-v1", config, NO_MODULES).continuous_actions == config.continuous_actions
    assert (config.continuous_actions is not None) == (run == "PPO")
