"""What an env or a vector env of the user's raises or returns by mistake names it, the line and what was expected."""

from __future__ import annotations

import pickle
import re
import signal
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import VectorEnv

from rlexp.envs.checked_env import CheckedEnv, has_form, misfit
from rlexp.envs.make import make_env, make_filmed_env, make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.errors import EnvError, UsageError
from rlexp.processes.signals import DrainRequest
from tests.lab.envs import COUNTING_VECTOR_ENV, CountingEnv, CountingVectorEnv

NAME = "tests.unit.envs.test_checked_env:FaultyEnv"
WILD = EnvConfig("tests.unit.envs.test_checked_env:WildEnv")

ARRAYS: dict[str, tuple[Any, Any]] = {
    "array reward": (np.zeros(1, np.float32), False),
    "scalar array reward": (np.array(0.5), False),
    "array end": (0.0, np.zeros(1, bool)),
}
"""Rewards and terminations."""


class FaultyEnv(CountingEnv):
    """Does one thing wrong."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        if fault == "no spaces":
            del self.observation_space
        elif fault == "raises when made":
            raise KeyError("level")
        elif fault == "exits when made":
            sys.exit("no display")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        if self.fault == "reset raises":
            raise ValueError("no level to load")
        return {"reset returns no info": obs, "reset returns a list": (obs, [])}.get(self.fault, (obs, info))

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        reward, terminated = ARRAYS.get(self.fault, (reward, terminated))
        match self.fault:
            case "raises":
                raise AttributeError("'Maze' object has no attribute 'goal'")
            case "exits":
                sys.exit(3)
            case "shape":
                obs = np.zeros(5, np.float32)
            case "no observation":
                obs = None  # type: ignore[assignment]
            case "info":
                info = None  # type: ignore[assignment]
            case "reward":
                reward = "1.5"  # type: ignore[assignment]
            case "no reward":
                reward = None  # type: ignore[assignment]
            case "terminated":
                terminated = "no"  # type: ignore[assignment]
            case "four":
                return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        if self.fault == "close":
            raise RuntimeError("the window is gone")


class OldResetEnv(CountingEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class PartsEnv(CountingEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({"a": Box(0, 1, (2,), np.float32), "b": Discrete(3)})

    def _observation(self) -> Any:
        return {"a": np.zeros(2, np.float32), "b": 1} if self._step == 0 else {"a": np.zeros(2, np.float32)}


def faulty(fault: str, **arguments: Any) -> EnvConfig:
    return EnvConfig(NAME, {"fault": fault, **arguments})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"test_checked_env.py:\d+ in step: AttributeError: 'Maze' object has no attribute 'goal'"),
        ("exits", r"test_checked_env.py:\d+ in step: SystemExit: 3"),
        ("shape", r"step returned an observation of shape \(5,\) and dtype float32, but .* the shape \(3,\)"),
        ("no observation", r"step returned an observation of type NoneType, but .* the shape \(3,\)"),
        ("info", r"step returned an info of type NoneType, not a dict"),
        ("reward", r"step returned a reward of type str \('1.5'\), not a number"),
        ("array reward", r"step returned a reward of shape \(1,\) and dtype float32, not a number"),
        ("array end", r"step returned terminated: shape \(1,\) and dtype bool, not a bool"),
        ("no reward", r"step returned a reward of type NoneType, not a number"),
        ("terminated", r"step returned terminated: type str \('no'\), not a bool"),
        ("four", r"step returned type tuple with 4 items, not a tuple \(observation, reward, terminated, truncated"),
    ],
)
def test_checked_env_names_what_is_wrong_with_a_step(fault: str, message: str) -> None:
    vector = make_vector_env(faulty(fault), 2)
    vector.reset(seed=0)
    with pytest.raises(EnvError, match=rf"^env {NAME}: .*{message}") as caught:
        vector.step(np.zeros(2, np.int64))
    assert caught.value.hint


class ConfiguredEnv(CountingEnv):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            {"length": 5, "width": 2},
            "env_config gives keyword arguments: write def __init__(self, length=..., width=...)",
        ),
        ({}, "give the argument a default value, or give it in env_config"),
    ],
)
def test_hint_says_how_a_class_gets_its_arguments(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match="argument") as caught:
        make_env(EnvConfig(NAME.replace("FaultyEnv", "ConfiguredEnv"), arguments))
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no spaces", "has no observation_space: it must be a gymnasium.Space"),
        ("raises when made", r"test_checked_env.py:\d+ in __init__: KeyError: 'level'"),
        ("exits when made", r"test_checked_env.py:\d+ in __init__: SystemExit: no display"),
    ],
)
def test_env_that_cannot_be_made_is_a_usage_error(fault: str, message: str) -> None:
    for make in (make_env, lambda config: make_vector_env(config, 1)):
        with pytest.raises(UsageError, match=message) as caught:
            make(faulty(fault))
        assert caught.value.exit_code == 2


class WildError(BaseException):
    def __str__(self) -> str:
        raise ValueError("no text")


class HeldError(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.held = lambda: None


def recurse() -> None:
    recurse()


class WildEnv(CountingEnv):
    """Raises what no env should."""

    def step(self, action: int) -> Any:
        match action:
            case 0:
                raise KeyboardInterrupt
            case 1:
                raise GeneratorExit
            case 2:
                raise WildError
            case 3:
                raise StopIteration(3)
            case 4:
                recurse()
            case 5:
                raise HeldError
            case 6:
                signal.raise_signal(signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (0, "KeyboardInterrupt"),
        (1, "GeneratorExit"),
        (2, r"WildError \(its __str__ fails\)"),
        (3, "StopIteration: 3"),
        (4, "RecursionError: maximum recursion depth exceeded.*"),
        (5, "HeldError: held"),
    ],
)
def test_whatever_an_env_raises_is_named_and_goes_to_other_processes(action: int, message: str) -> None:
    for env in (make_env(WILD), make_vector_env(WILD, 1)):
        env.reset(seed=0)
        with pytest.raises(EnvError, match=rf"test_checked_env.py:\d+ in \w+: {message}$") as caught:
            env.step(action if isinstance(env, gym.Env) else np.array([action]))
        assert caught.value.hint in ("correct the env", "an env must not end its process: raise an Exception instead")
        copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert (type(copy), copy.message, copy.hint) == (EnvError, caught.value.message, caught.value.hint)


def test_ctrl_c_while_an_env_steps_is_no_error_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env(WILD)
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step(6)
    monkeypatch.setattr("rlexp.processes.signals.TOGETHER_S", -1.0)
    with DrainRequest():
        env.step(6)
        with pytest.raises(KeyboardInterrupt):  # the second Ctrl-C, which a handler of ours answers
            env.step(6)


def test_reward_that_is_an_array_is_refused_with_how_to_make_a_number_of_it() -> None:
    env = make_env(faulty("array reward"))
    env.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        env.step(0)
    assert caught.value.hint == "return one number: float(reward.item()) where the reward is an array with one item"
    vector = make_vector_env(faulty("scalar array reward"), 1)
    vector.reset(seed=0)
    assert vector.step(np.zeros(1, np.int64))[1].tolist() == [0.5]


def test_close_that_raises_is_located() -> None:
    with pytest.raises(EnvError, match=r"test_checked_env.py:\d+ in close: RuntimeError: the window is gone"):
        make_env(faulty("close")).close()


def test_reset_of_older_gym_is_told_its_arguments() -> None:
    with pytest.raises(EnvError) as caught:
        make_env(EnvConfig("tests.unit.envs.test_checked_env:OldResetEnv")).reset(seed=0)
    assert caught.value.hint == "reset must accept the keyword arguments seed and options"


def test_missing_part_of_an_observation_is_named() -> None:
    vector = make_vector_env(EnvConfig("tests.unit.envs.test_checked_env:PartsEnv"), 1)
    vector.reset(seed=0)
    with pytest.raises(EnvError, match="step returned an observation without 'b', which is in its observation_space"):
        vector.step(np.zeros(1, np.int64))


def test_wrong_part_of_an_observation_is_named() -> None:
    class Wrong(PartsEnv):
        def _observation(self) -> Any:
            return {"a": 0.5, "b": 1}

    with pytest.raises(EnvError, match=r"an observation\['a'\] of .*, but its observation_space\['a'\] has the shape"):
        CheckedEnv(Wrong(), "x").reset(seed=0)


@pytest.mark.parametrize(
    ("space", "good", "bad", "what"),
    [
        (MultiDiscrete([3, 4]), [np.array([2, 0]), [2, 3], np.zeros(2, np.int8)], [3, 0], "with 3 in it"),
        (MultiDiscrete([3, 4], start=[1, 0]), [np.array([3, 0])], np.array([0, 0]), "with 0 in it"),
        (
            MultiBinary(3),
            [np.array([1, 0, 1], np.int8), [True, False, 1]],
            np.array([7, 0, 1], np.int8),
            "with 7 in it",
        ),
        (MultiBinary(3), [np.ones(3, bool)], np.array([-1, 0, 1]), "with -1 in it"),
        (MultiBinary(3), [(1, 0, 1)], np.zeros(4, np.int8), r"of shape \(4,\) and dtype int8"),
        (MultiBinary(3), [np.ones(3)], np.array([0.5, 0, 1]), "with 0.5 in it"),
        (MultiBinary(3), [], ["0", "1", "1"], "of type list with 3 items"),
        (MultiDiscrete([3, 4], dtype=np.uint8), [[2, 3]], np.array([np.nan, 0]), "with nan in it"),
        (MultiDiscrete(np.array([[3, 4]])), [np.array([[2, 3]])], [2, 3], "of type list with 2 items"),
        (MultiDiscrete([3, 4]), [], [[1], [1, 2]], "of type list with 2 items"),
        (MultiDiscrete([3, 4]), [], None, "of type NoneType"),
    ],
)
def test_numbers_of_an_observation_are_those_of_its_space(space: Any, good: list[Any], bad: Any, what: str) -> None:
    for whole, wrap in (
        (space, lambda part: part),
        (Dict({"a": space}), lambda part: {"a": part}),
        (Tuple((space,)), lambda part: (part,)),
    ):
        assert all(has_form(whole, wrap(obs)) for obs in good)
        assert not has_form(whole, wrap(bad))
        assert re.search(rf"^an observation\S* {what}, but its observation_space\S* is Multi", misfit(whole, wrap(bad)))


def test_env_without_faults_is_passed_on_unchanged() -> None:
    checked, plain = make_env(faulty("")), FaultyEnv()
    assert checked.reset(seed=3)[0].tolist() == plain.reset(seed=3)[0].tolist()
    for _ in range(4):
        (obs, *rest), (expected, *others) = checked.step(0), plain.step(0)
        assert obs.tolist() == expected.tolist()
        assert rest == others
    assert isinstance(checked, gym.Env)


VECTOR_NAME = "tests.unit.envs.test_checked_env:FaultyVectorEnv"


class FaultyVectorEnv(CountingVectorEnv):
    """Does one thing wrong."""

    def __init__(self, num_envs: int, fault: str) -> None:
        super().__init__(num_envs + (fault == "too many"), "SameStep" if fault == "same step" else "NextStep")
        self._fault = fault
        if fault == "no space":
            del self.single_action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = super().reset(seed=seed, options=options)
        return obs if self._fault == "only observations" else (obs, infos)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        match self._fault:
            case "raises":
                raise ValueError("no such action")
            case "shape":
                obs = obs[0]
            case "rewards":
                rewards = rewards.tolist()
            case "flags":
                terminated = terminated.astype(np.float64)
            case "infos":
                return obs, rewards, terminated, truncated, []
            case "ends again":
                terminated[:] = True
        return obs, rewards, terminated, truncated, infos


class TakesNoNumber(VectorEnv[Any, Any, Any]):
    """Cannot be made with a number of envs."""

    def __init__(self) -> None:
        """Take nothing."""


def config(fault: str) -> EnvConfig:
    return EnvConfig(VECTOR_NAME, {"fault": fault})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("only observations", "reset returned ndarray, not a tuple (observation, info)"),
        ("raises", "ValueError: no such action"),
        ("shape", "step returned observations of shape (3,), not (2, 3)"),
        ("rewards", "step returned rewards of <class 'list'>, not an array of numbers of shape (2,)"),
        ("flags", "terminated of shape (2,) and dtype float64, not an array of bool of shape (2,)"),
        ("infos", "infos of type list, not a dict"),
        ("ends again", "an episode ended in the step after the end of another, which resets"),
    ],
)
def test_fault_names_the_vector_env(fault: str, message: str) -> None:
    vector = make_vector_env(config(fault), 2)
    with pytest.raises(EnvError) as caught:  # noqa: PT012 (whichever call finds it)
        vector.reset(seed=0)
        for _ in range(2):
            vector.step(np.zeros(2, np.int64))
    assert VECTOR_NAME in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        ("no space", "has no single_action_space", "set self.single_action_space in __init__"),
        ("too many", "has num_envs 3, not 2", "set self.num_envs"),
        ("same step", "AutoresetMode.SAME_STEP, but rlexp needs AutoresetMode.NEXT_STEP", "set metadata"),
    ],
)
def test_vector_env_that_cannot_be_played_is_refused(fault: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_vector_env(config(fault), 2)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_class_of_vector_envs_that_takes_no_number_is_told_so() -> None:
    with pytest.raises(UsageError) as caught:
        make_vector_env(EnvConfig("tests.unit.envs.test_checked_env:TakesNoNumber"), 2)
    assert "write def __init__(self, num_envs)" in str(caught.value.hint)


def test_vector_env_is_also_a_single_env() -> None:
    env = make_env(EnvConfig(COUNTING_VECTOR_ENV, {}, 2))
    first, _ = env.reset(seed=4)
    steps = [env.step(0) for _ in range(2)]
    assert first.tolist() == [4, 0, 0]
    assert [(step[0].tolist(), *step[1:4]) for step in steps] == [
        ([4, 0, 1], 1.0, False, False),
        ([4, 0, 2], 2.0, False, True),
    ]
    assert env.reset()[0].tolist() == [4, 1, 0]
    assert first.tolist() == [4, 0, 0], "observations are the caller's own"


def test_vector_env_without_pictures_cannot_be_recorded() -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        make_filmed_env(EnvConfig(COUNTING_VECTOR_ENV))
