"""What a vector env of the user's own raises or returns by mistake names it, and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from rlexp.envs import EnvConfig, make_env, make_filmed_env, make_vector_env
from rlexp.errors import EnvError, UsageError
from tests.envs import COUNTING_VECTOR_ENV, CountingVectorEnv

NAME = "tests.unit.envs.test_checked_vector:FaultyVectorEnv"


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
    return EnvConfig(NAME, {"fault": fault}, None)


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
    assert NAME in caught.value.message
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
        make_vector_env(EnvConfig("tests.unit.envs.test_checked_vector:TakesNoNumber", {}, None), 2)
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
        make_filmed_env(EnvConfig(COUNTING_VECTOR_ENV, {}, None))
