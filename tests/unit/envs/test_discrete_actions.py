from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rlexp.envs import EnvConfig, make_env, make_vector_env
from rlexp.envs.spaces import DiscreteActions
from rlexp.errors import UsageError
from tests.envs import COUNTING_ENV


class Echo(gym.Env[Any, Any]):
    """Remembers the actions it got."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, low: Any, high: Any, dtype: Any = np.float32) -> None:
        self.action_space = Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.actions: list[NDArray[Any]] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def played(env: Echo, bins: int) -> list[Any]:
    wrapped = DiscreteActions(env, "Echo-v0", bins)
    assert isinstance(wrapped.action_space, Discrete)
    for action in range(int(wrapped.action_space.n)):
        wrapped.step(np.int64(action))
    return [action.tolist() for action in env.actions]


def test_discrete_actions_divide_one_dimension_evenly() -> None:
    assert played(Echo([-2.0], [2.0]), bins=5) == [[-2.0], [-1.0], [0.0], [1.0], [2.0]]


def test_discrete_actions_of_two_dimensions_are_a_grid() -> None:
    actions = played(Echo([0.0, -1.0], [1.0, 1.0]), bins=3)
    assert len(actions) == 9
    assert sorted(actions) == sorted([first, second] for first in (0.0, 0.5, 1.0) for second in (-1.0, 0.0, 1.0))


def test_discrete_actions_keep_shape_and_dtype() -> None:
    env = Echo([[0, 0], [0, 0]], [[1, 1], [1, 1]], np.int8)
    assert len(played(env, bins=2)) == 2**4
    assert all(action.shape == (2, 2) and action.dtype == np.int8 for action in env.actions)
    assert all(env.action_space.contains(action) for action in env.actions)


def test_discrete_actions_are_copies() -> None:
    env = Echo([-1.0], [1.0])
    wrapped = DiscreteActions(env, "Echo-v0", 2)
    wrapped.step(0)
    env.actions[0][:] = 7.0
    wrapped.step(0)
    assert env.actions[1].tolist() == [-1.0]


def test_discrete_actions_refuse_unbounded_dimensions() -> None:
    with pytest.raises(UsageError, match=r"Echo-v0 .* without bounds"):
        DiscreteActions(Echo([-np.inf], [1.0]), "Echo-v0", 3)


def test_discrete_actions_refuse_large_grids() -> None:
    with pytest.raises(UsageError, match=r"5\*\*17 actions .* Echo-v0") as caught:
        DiscreteActions(Echo([-1.0] * 17, [1.0] * 17), "Echo-v0", 5)
    assert caught.value.hint is not None


def test_pendulum_with_discrete_actions() -> None:
    config = EnvConfig("Pendulum-v1", {}, None, discretize_actions=5)
    vector = make_vector_env(config, 2)
    assert vector.single_action_space == make_env(config).action_space == Discrete(5)
    vector.reset(seed=0)
    obs, *_ = vector.step(np.array([0, 4]))
    assert obs.shape == (2, 3)


def test_discretize_actions_leaves_discrete_envs_unchanged() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV, {}, None, discretize_actions=5), 1)
    assert vector.single_action_space == Discrete(1000)
