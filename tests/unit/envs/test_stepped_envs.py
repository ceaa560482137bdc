"""SteppedEnvs does what Gymnasium's SyncVectorEnv does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlexp.envs.stepped_envs import SteppedEnvs


class Walk(gym.Env[Any, Any]):
    """Walks by random steps from 0 until it is 4 away, or for 9 steps; reports its place at every second step."""

    action_space: gym.Space[Any] = Box(-1, 1, (1,))

    def __init__(self, space: gym.Space[Any], dtype: Any) -> None:
        self.observation_space = space
        self._dtype = dtype

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = 0.0, 0
        return self._obs(), {"began": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += float(action[0]) + int(self.np_random.integers(-1, 2))
        self._steps += 1
        info = {"place": self._place} if self._steps % 2 else {}
        return self._obs(), self._place, abs(self._place) > 4, self._steps == 9, info

    def _obs(self) -> Any:
        return np.full(self.observation_space.shape or (), self._place, self._dtype)


PLAIN, IMAGE = Box(-9, 9, (3,)), Box(0, 255, (2, 2, 1), np.uint8)
SPACES = [(PLAIN, np.float32), (PLAIN, np.float64), (IMAGE, np.uint8), (Box(-9, 9, ()), np.float32)]


@pytest.mark.parametrize(("space", "dtype"), [*SPACES, (MultiBinary(4), np.int8)])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_it_steps_as_gymnasium_does(space: gym.Space[Any], dtype: Any, num_envs: int) -> None:
    makers = [lambda: Walk(space, dtype)] * num_envs
    found, expected = SteppedEnvs(makers), SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    np.testing.assert_equal(found.reset(seed=1), expected.reset(seed=1))
    rng, ended, kept = np.random.default_rng(0), 0, list[Any]()
    with np.errstate(invalid="ignore"):
        for _ in range(60):
            actions = rng.uniform(-1, 1, (num_envs, 1)).astype(np.float32)
            one, other = found.step(actions), expected.step(actions)
            np.testing.assert_equal(one, other)
            assert [part.dtype for part in one[:4]] == [part.dtype for part in other[:4]]
            ended += int((one[2] | one[3]).sum())
            kept.append((one, other))
    assert ended > 3
    np.testing.assert_equal([one for one, _ in kept], [other for _, other in kept])  # no step changed an earlier one's


def test_fractions_are_no_integers() -> None:
    vector = SteppedEnvs([lambda: Walk(IMAGE, np.float32)])
    with pytest.raises(TypeError):
        vector.reset(seed=0)
    vector = SteppedEnvs([lambda: TurnsToFractions(IMAGE, np.uint8)])
    vector.reset(seed=0)
    with pytest.raises(TypeError, match="same_kind"):
        vector.step(np.zeros((1, 1), np.float32))


class TurnsToFractions(Walk):
    """Returns another dtype from its first step on."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._dtype = np.float32
        return super().step(action)


def test_numbered_actions_arrive_as_numbers() -> None:
    class Counts(Walk):
        action_space = Discrete(3)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert isinstance(action, np.int64)
            return self._obs(), float(action), False, False, {}

    vector = SteppedEnvs([lambda: Counts(PLAIN, np.float32)] * 2)
    vector.reset(seed=0)
    assert vector.step(np.array([2, 1]))[1].tolist() == [2.0, 1.0]
