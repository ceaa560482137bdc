"""The user's own wrappers and preprocessors: their order, their place, and whom an error names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv

from rlexp.board.task import env_fingerprint
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import NO_MODULES, UserClass, UserModules
from rlexp.envs import GAME_OVER, EnvConfig, env_config_of, make_env, make_vector_env, spaces_of
from rlexp.envs.registry import FrameConfig
from rlexp.errors import EnvError, UsageError
from tests.envs import COUNTING_ENV, PIXEL_ENV

ROOM = "tests.wrappers"
RLLIB_MODULE = """
from ray.rllib.models.no_such_preprocessors import Preprocessor
"""


def config(
    *wrappers: UserClass, env: str = COUNTING_ENV, preprocessor: UserClass | None = None, **keys: Any
) -> EnvConfig:
    return EnvConfig(env, {}, keys.pop("horizon", None), wrappers=wrappers, preprocessor=preprocessor, **keys)


def named(name: str, **kwargs: Any) -> UserClass:
    return UserClass(f"{ROOM}:{name}", kwargs)


def test_wrappers_are_applied_in_order_the_first_innermost() -> None:
    env = make_env(config(named("Scaled", factor=10), named("Plus", factor=1)))
    env.reset(seed=2)
    obs = env.step(0)[0]
    assert obs.tolist() == [2 * 10 + 1, 0 * 10 + 1, 1 * 10 + 1]


def test_wrappers_see_the_end_that_the_horizon_makes() -> None:
    env = make_env(config(named("Paid"), horizon=2))
    env.reset(seed=0)
    assert [env.step(0)[1:4] for _ in range(2)] == [(7.0, False, False), (7.0, False, True)]


def test_gymnasiums_own_wrappers_are_named_like_the_users() -> None:
    env = make_env(config(UserClass("gymnasium.wrappers:FlattenObservation"), env=PIXEL_ENV))
    assert env.observation_space.shape == (300,)


def test_agents_see_the_spaces_behind_the_wrappers() -> None:
    observation_space, _ = spaces_of(config(named("InTwoParts")))
    assert observation_space.shape == (2,)


def test_native_vector_env_is_given_up_for_a_wrapper() -> None:
    wrapped = make_vector_env(config(named("Paid"), env="CartPole-v1"), 2)
    assert isinstance(wrapped.unwrapped, SyncVectorEnv)
    wrapped.reset(seed=0)
    assert wrapped.step(np.zeros(2, np.int64))[1].tolist() == [7.0, 7.0]


def test_images_are_prepared_behind_the_wrappers() -> None:
    frames = FrameConfig("deepmind", 24, grayscale=False, framestack=True)
    wrapped = config(named("Cropped", side=6), env=PIXEL_ENV)
    assert make_env(wrapped).observation_space.shape == (6, 6, 3)
    env = make_env(EnvConfig(PIXEL_ENV, {}, None, frames=frames, wrappers=wrapped.wrappers))
    assert env.reset(seed=0)[0].shape == env.observation_space.shape == (24, 24, 3)


def test_games_as_in_the_paper_are_wrapped_as_prepared_and_still_report_their_score() -> None:
    frames = FrameConfig("deepmind", 42, grayscale=False, framestack=True)
    env = make_env(config(named("Paid"), env="PongNoFrameskip-v4", frames=frames, horizon=3))
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(3)]
    assert [step[0].shape for step in steps] == [(42, 42, 4)] * 3
    assert [step[1] for step in steps] == [7.0] * 3
    assert [step[4][GAME_OVER] for step in steps] == [False, False, True]


def test_joined_actors_notice_another_wrapper_by_the_fingerprint() -> None:
    fingerprints = {
        env_fingerprint(config(*wrappers))
        for wrappers in ((), (named("Paid"),), (named("Paid", reward=8.0),), (named("Scaled", factor=2),))
    }
    assert len(fingerprints) == 4
    assert env_fingerprint(config(named("Unchanged"))) == env_fingerprint(config())


def test_preprocessor_makes_what_agents_see() -> None:
    given = config(named("Scaled", factor=10), preprocessor=named("Only", index=2, factor=0.5))
    vector = make_vector_env(given, 2)
    vector.reset(seed=0)
    assert vector.step(np.zeros(2, np.int64))[0].tolist() == [[5.0], [5.0]]


def test_preprocessor_takes_the_place_of_the_preparation_of_images() -> None:
    keys = DQNConfig.model_validate({"model": {"custom_preprocessor": f"{ROOM}:Only"}})
    made = env_config_of("PongNoFrameskip-v4", keys, NO_MODULES)
    assert made.frames is None
    assert not made.is_deepmind_atari
    assert make_env(made).observation_space == Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize("fault", ["raises", "shape"])
def test_error_names_the_wrapper_whose_code_is_wrong(fault: str) -> None:
    env = make_env(config(named("Unchanged"), named("Faulty", fault=fault), named("Plus", factor=1)))
    env.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        env.step(0)
    assert caught.value.message.startswith(f"env {COUNTING_ENV}: wrapper {ROOM}:Faulty: ")
    where = "tests/wrappers.py:" if fault == "raises" else "step returned an observation of shape (2,)"
    assert where in caught.value.message
    assert caught.value.hint in ("correct the wrapper", "correct step of the wrapper")


def test_error_of_the_env_names_the_env_alone() -> None:
    env = make_env(config(named("Plus", factor=1), env="tests.envs:RaisingEnv"))
    env.reset(seed=0)
    for _ in range(4):
        env.step(0)
    with pytest.raises(EnvError) as caught:
        env.step(0)
    assert "this env raises" in caught.value.message
    assert "wrapper" not in caught.value.message


@pytest.mark.parametrize(
    ("wrapper", "message", "hint"),
    [
        (named("Faulty", fault="raises when made"), "KeyError: 'depth'", "correct the class"),
        (named("Scaled"), "missing 1 required positional argument: 'factor'", "its arguments are the env"),
        (named("Paid", bonus=1), "unexpected keyword argument 'bonus'", "its arguments are the env"),
        (named("Payed"), "has no Payed", "did you mean Paid?"),
        (named("not_a_class"), "not_a_class is not a gymnasium.Wrapper", "must derive from gymnasium.Wrapper"),
        (named("Only"), "Only is not a gymnasium.Wrapper", "must derive from gymnasium.Wrapper"),
        (UserClass("os:system"), "system is not a gymnasium.Wrapper", "must derive from gymnasium.Wrapper"),
        (UserClass("no_such_module:W"), "module no_such_module cannot be imported", "installed packages"),
    ],
)
def test_wrapper_that_cannot_be_made_is_refused(wrapper: UserClass, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(config(wrapper))
    assert message in caught.value.message
    assert wrapper.name in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("preprocessor", "message", "hint"),
    [
        (named("FaultyPreprocessor", fault="no space"), "has no observation_space", "set self.observation_space"),
        (named("Only", size=3), "unexpected keyword argument 'size'", "or the observation space"),
        (named("OfRLlib"), "is a preprocessor of RLlib", "_init_shape(obs_space, options) is its"),
        (named("Paid"), "Paid is not a rlexp.envs.Preprocessor", "must derive from rlexp.envs.Preprocessor"),
        (named("not_a_class"), "is not a rlexp.envs.Preprocessor", "must derive from"),
    ],
)
def test_preprocessor_that_cannot_be_made_is_refused(preprocessor: UserClass, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(config(preprocessor=preprocessor))
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_preprocessor_that_imports_rllib_is_told_how_to_convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # without the parts of RLlib, and quick
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "made_for_rllib.py").write_text(RLLIB_MODULE, encoding="utf-8")
    modules = UserModules(folders=(str(tmp_path),))
    with pytest.raises(UsageError, match="made_for_rllib cannot be imported") as caught:
        make_env(config(preprocessor=UserClass("made_for_rllib:Grid"), modules=modules))
    assert "derive it from rlexp.envs.Preprocessor" in str(caught.value.hint)


@pytest.mark.parametrize("fault", ["raises", "shape"])
def test_error_names_the_preprocessor_whose_code_is_wrong(fault: str) -> None:
    env = make_env(config(preprocessor=named("FaultyPreprocessor", fault=fault)))
    with pytest.raises(EnvError) as caught:
        env.reset(seed=0)
    assert caught.value.message.startswith(f"env {COUNTING_ENV}: preprocessor {ROOM}:FaultyPreprocessor: ")
