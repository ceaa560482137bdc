"""What is doubtful about an env is found before anything is trained: all of it, with the step, within some seconds."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from rlexp.envs.checked_env import CheckedEnv
from rlexp.envs.env_check import EnvCheck, Limit
from rlexp.envs.make import make_env
from rlexp.errors import EnvError
from tests.lab.envs import CountingEnv
from tests.unit.envs.test_checked_env import NAME, faulty

EPISODES = Limit(math.inf, 4, 60.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset raises", r"test_checked_env.py:\d+ in reset: ValueError: no level to load"),
        ("reset returns no info", r"reset returned shape \(3,\) and dtype float32, not a tuple \(observation, info\)"),
        ("reset returns a list", r"reset returned an info of type list with 0 items, not a dict"),
        ("four", r"step returned type tuple with 4 items"),
    ],
)
def test_first_steps_find_what_is_wrong_before_a_run(fault: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        EnvCheck(NAME, make_env(faulty(fault))).first_steps()


class NumbersEnv(CountingEnv):
    """Multiplies its highest observation, and its reward, from the third step on."""

    def __init__(self, obs_factor: float = 1.0, reward_factor: float = 1.0) -> None:
        super().__init__()
        self._obs_factor, self._reward_factor = obs_factor, reward_factor

    def step(self, action: int) -> Any:
        obs, reward, *rest = super().step(action)
        if self._step < 3:
            return obs, reward, *rest
        return self.observation_space.high * np.float32(self._obs_factor), self._reward_factor, *rest  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (NumbersEnv(obs_factor=math.nan), "env x: step 3 of episode 1 returned an observation of nan"),
        (NumbersEnv(reward_factor=math.inf), "env x: step 3 of episode 1 returned a reward of inf"),
    ],
)
def test_first_steps_find_numbers_that_cannot_be_trained_with(env: NumbersEnv, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        EnvCheck("x", env).first_steps()


@pytest.mark.parametrize(("factor", "doubts"), [(1.0, 0), (1.001, 0), (2.0, 1)])
def test_first_steps_name_observations_far_outside_their_space(factor: float, doubts: int) -> None:
    said = EnvCheck("x", NumbersEnv(obs_factor=factor)).first_steps()
    assert len(said) == doubts
    assert all(
        "step 3 of episode 1 returned an observation of" in each.message
        and "outside its observation_space" in each.message
        for each in said
    )


def test_reset_that_does_not_repeat_by_its_seed_is_doubtful() -> None:
    class Forgets(CountingEnv):
        num_resets = 0

        def reset(self, **arguments: Any) -> Any:
            self.num_resets += 1
            obs, info = super().reset(**arguments)
            return obs + self.num_resets, info

    (doubt,) = EnvCheck("x", CheckedEnv(Forgets(), "x")).first_steps()
    assert "reset returns another observation for the same seed" in doubt.message


class LateFaultsEnv(CountingEnv):
    """Ends an episode after 25 steps, and does in its later steps what is wrong."""

    def step(self, action: int) -> Any:
        obs, _, *_ = super().step(action)
        obs, reward = obs / 100, 0.0
        match self._step:
            case 7:
                obs[0] = math.nan
            case 9:
                obs[1] = 1e9
            case 12:
                reward = math.inf
            case 20:
                raise IndexError("no room")
        return obs, reward, self._step == 25, False, {}


def test_played_episodes_name_all_faults_once_each_with_its_step() -> None:
    found = list(EnvCheck("x", CheckedEnv(LateFaultsEnv(), "x")).doubts(EPISODES))
    assert [doubt.is_error for doubt in found] == [True, False, True, True]
    for doubt, what in zip(
        found,
        (
            "step 7 of episode 1 returned an observation of nan",
            "step 9 of episode 1 returned an observation of 1e+09, outside its observation_space",
            "step 12 of episode 1 returned a reward of inf",
            "IndexError: no room (step 20 of episode 1)",
        ),
        strict=True,
    ):
        assert what in doubt.message


def test_fault_of_a_later_episode_is_found() -> None:
    class SecondEpisode(CountingEnv):
        num_resets = 0

        def reset(self, **arguments: Any) -> Any:
            self.num_resets += 1
            return super().reset(**arguments)

        def step(self, action: int) -> Any:
            if self.num_resets == 4 and self._step == 2:  # the first episode is reset twice, to compare
                raise KeyError("door")
            return super().step(action)

    (doubt,) = EnvCheck("x", CheckedEnv(SecondEpisode(), "x")).doubts(EPISODES)
    assert doubt.message.endswith("KeyError: 'door' (step 3 of episode 3)")


LONG = replace(EPISODES, least_steps=1_000, is_repeated=True)


def test_more_episodes_are_played_until_there_are_enough_steps() -> None:
    class Rare(CountingEnv):
        num_steps = 0

        def step(self, action: int) -> Any:
            self.num_steps += 1
            if self.num_steps == 600:
                raise KeyError("door")
            return super().step(action)

    assert list(EnvCheck("x", CheckedEnv(Rare(), "x")).doubts(EPISODES)) == []
    (doubt,) = EnvCheck("x", CheckedEnv(Rare(), "x")).doubts(LONG)
    assert "KeyError: 'door'" in doubt.message


@pytest.mark.parametrize("part", ["observation", "reward", "neither"])
def test_steps_that_do_not_repeat_by_the_seed_are_doubtful(part: str) -> None:
    class Draws(CountingEnv):
        drawn = 0

        def step(self, action: int) -> Any:
            self.drawn += 1
            obs, reward, *rest = super().step(action)
            later = np.float32(self.drawn / 10_000)
            return obs + later * (part == "observation"), reward + float(later) * (part == "reward"), *rest

    found = list(EnvCheck("x", CheckedEnv(Draws(), "x")).doubts(LONG))
    said = ["step returns another observation or reward for the same seed" in doubt.message for doubt in found]
    assert said == [True] * (part != "neither")


def test_nan_that_repeats_is_no_other_number() -> None:
    class Undefined(CountingEnv):
        def step(self, action: int) -> Any:
            obs, _, *rest = super().step(action)
            return obs * np.float32(math.nan), math.nan, *rest

    found = list(EnvCheck("x", CheckedEnv(Undefined(), "x")).doubts(LONG))
    assert [doubt.is_error for doubt in found] == [True, True]
    assert not any("for the same seed" in doubt.message for doubt in found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_floats_than_of_the_space_are_noted_in_a_long_check(dtype: type[np.floating]) -> None:
    class Floats(CountingEnv):
        def reset(self, **arguments: Any) -> Any:
            obs, info = super().reset(**arguments)
            return obs.astype(dtype), info

    check = EnvCheck("x", CheckedEnv(Floats(), "x"))
    assert check.first_steps() == []
    said = [doubt.message for doubt in EnvCheck("x", CheckedEnv(Floats(), "x")).doubts(LONG)]
    note = "reset returned float64 numbers, which become float32, as in its observation_space"
    assert said == [note] * (dtype is np.float64)


def test_rewards_are_noticed() -> None:
    class NoReward(CountingEnv):
        def step(self, action: int) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 0.0, *rest

    for env, expected in ((NoReward(), False), (NumbersEnv(), True)):
        check = EnvCheck("x", CheckedEnv(env, "x"))
        assert list(check.doubts(EPISODES)) == []
        assert check.has_rewards is expected


def test_fractions_in_a_space_of_whole_numbers_are_doubtful() -> None:
    class Scaled(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Box(0, 255, (3,), np.uint8)

        def reset(self, **arguments: Any) -> Any:
            super().reset(**arguments)
            return np.full(3, 0.5, np.float32), {}

        def step(self, action: int) -> Any:
            _, *rest = super().step(action)
            return np.full(3, 0.5, np.float32), *rest

    (doubt,) = EnvCheck("x", CheckedEnv(Scaled(), "x")).first_steps()
    assert doubt.message == "reset returned float32 numbers, which its observation_space (uint8) cuts off"


def test_play_ends_in_time_and_with_its_episodes() -> None:
    check = EnvCheck("x", CheckedEnv(CountingEnv(), "x"))
    assert list(check.doubts(EPISODES)) == []
    assert (check.num_episodes, check.num_ended) == (4, 4)

    class Endless(CountingEnv):
        def step(self, action: int) -> Any:
            obs, reward, *_ = super().step(action)
            return obs * 0, reward, False, False, {}

    begin_s = time.monotonic()
    endless = EnvCheck("x", CheckedEnv(Endless(), "x"))
    assert list(endless.doubts(Limit(math.inf, 4, 0.05))) == []
    assert time.monotonic() - begin_s < 30
    assert (endless.num_episodes, endless.num_ended) == (1, 0)


def test_env_that_can_never_be_stepped_ends_the_play() -> None:
    check = EnvCheck("x", make_env(faulty("raises")))
    (doubt,) = check.doubts(Limit(math.inf, math.inf, 60.0))
    assert (doubt.is_error, check.num_episodes) == (True, 1)
