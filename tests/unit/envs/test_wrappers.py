"""Frames are scaled and stacked; the user's wrappers and preprocessors have an order, and errors with a name."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from rlexp.board.task import env_fingerprint
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import NO_MODULES, UserClass, UserModules
from rlexp.envs.atari import GAME_OVER
from rlexp.envs.make import make_env, make_vector_env, spaces_of
from rlexp.envs.registry import EnvConfig, FrameConfig, env_config_of
from rlexp.envs.wrappers import AreaMean, ScaledFrames, StackedFrames
from rlexp.errors import EnvError, UsageError
from rlexp.sample_batch import Array
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV, PIXEL_ENV, PixelEnv
from tests.lab.pixel_games import BALLS, CATCH, CELL_PIXELS, CELLS


def frames(preprocessing: str, dim: int | None = 4, grayscale: bool = False) -> FrameConfig:
    return FrameConfig(preprocessing, dim, grayscale, framestack=True)  # type: ignore[arg-type]


def slow_area_mean(values: list[int], dim: int) -> list[float]:
    """Cut every value into dim parts: a new pixel is the mean of len(values) neighbouring parts."""
    parts = [value for value in values for _ in range(dim)]
    size = len(values)
    return [float(Fraction(sum(parts[i * size : (i + 1) * size]), size)) for i in range(dim)]


@given(values=st.lists(st.integers(0, 255), min_size=1, max_size=40), dim=st.integers(1, 40))
def test_scaled_pixel_is_the_mean_of_its_area(values: list[int], dim: int) -> None:
    scaled = AreaMean(len(values), dim)(np.array(values, np.uint8), axis=0)
    np.testing.assert_allclose(scaled, slow_area_mean(values, dim), atol=1e-3)


def test_scaled_frames_keep_channels_apart() -> None:
    env = ScaledFrames(PixelEnv(size=8), size=(4, 4), grayscale=False)
    obs, _ = env.reset(seed=0)
    assert env.observation_space == Box(0, 255, (4, 4, 3), np.uint8)
    assert obs.dtype == np.uint8
    dark, bright = [0, 0, 0], [200, 100, 50]
    assert obs[0].tolist() in ([dark, dark, bright, bright], [bright, bright, dark, dark])
    assert (obs == obs[0]).all()


def test_scaled_frames_of_uneven_size_mix_neighbours() -> None:
    obs, _ = ScaledFrames(PixelEnv(size=2), size=(3, 3), grayscale=False).reset(seed=0)
    assert sorted(obs[0, :, 0].tolist()) == [0, 100, 200]


def test_grayscale_weights() -> None:
    obs, _ = ScaledFrames(PixelEnv(size=4), size=(4, 4), grayscale=True).reset(seed=0)
    assert obs.shape == (4, 4, 1)
    assert set(obs.reshape(-1).tolist()) == {0, round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)}


class NumberedFrames(gym.Env[np.ndarray, int]):
    """Frame k is k everywhere."""

    observation_space = Box(0, 255, (1, 1, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
        self.now = 10
        return np.full((1, 1, 2), self.now, np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.now += 1
        return np.full((1, 1, 2), self.now, np.uint8), 0.0, False, False, {}


def test_stacked_frames_hold_last_four() -> None:
    env = StackedFrames(NumberedFrames())
    obs, _ = env.reset()
    seen = [obs[0, 0, ::2].tolist()]
    first = obs
    for _ in range(5):
        obs, *_ = env.step(0)
        assert obs.shape == env.observation_space.shape == (1, 1, 8)
        seen.append(obs[0, 0, 1::2].tolist())
    assert seen[:3] == [[10, 10, 10, 10], [10, 10, 10, 11], [10, 10, 11, 12]]
    assert seen[-1] == [12, 13, 14, 15]
    assert first[0, 0].tolist() == [10] * 8, "what was handed out stays as it was"
    assert env.reset()[0][0, 0].tolist() == [10] * 8


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (frames("deepmind", dim=6), (6, 6, 3)),
        (frames("deepmind", dim=6, grayscale=True), (6, 6, 3)),
        (frames("rllib", dim=6), (6, 6, 3)),
        (frames("rllib", dim=6, grayscale=True), (6, 6, 1)),
        (frames("deepmind", dim=None), (10, 10, 3)),
        (frames("rllib", dim=None), (10, 10, 3)),
        (frames("rllib", dim=None, grayscale=True), (10, 10, 1)),
        (None, (10, 10, 3)),
    ],
)
def test_images_of_other_envs_are_scaled_only_where_dim_gives_a_size(
    config: FrameConfig | None, shape: tuple[int, ...]
) -> None:
    single = make_env(EnvConfig(PIXEL_ENV, frames=config))
    vector = make_vector_env(EnvConfig(PIXEL_ENV, frames=config), 2)
    obs, _ = vector.reset(seed=0)
    assert single.observation_space.shape == vector.single_observation_space.shape == shape
    assert obs.shape == (2, *shape)
    assert obs.dtype == np.uint8


class AtariLikeEnv(PixelEnv):
    """Shows frames of the size of an unprepared Atari game."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (210, 160, 3), np.uint8)

    def _draw(self) -> np.ndarray:
        return np.zeros((210, 160, 3), np.uint8)


@pytest.mark.parametrize("preprocessing", ["deepmind", "rllib"])
def test_atari_frames_of_an_env_of_another_name_are_scaled(preprocessing: str) -> None:
    name = "tests.unit.envs.test_wrappers:AtariLikeEnv"
    env = make_env(EnvConfig(name, frames=frames(preprocessing, dim=None)))
    assert env.observation_space.shape == (84, 84, 3)
    assert env.reset(seed=0)[0].shape == (84, 84, 3)


def test_vectors_are_not_scaled() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV, frames=frames("rllib")), 1)
    assert vector.single_observation_space.shape == (3,)


def test_image_of_right_size_is_unchanged() -> None:
    vector = make_vector_env(EnvConfig(IMAGE_ENV, frames=frames("rllib", dim=84)), 1)
    assert vector.single_observation_space == Box(0, 255, (84, 84, 3), np.uint8)


STAY = 1
EPISODES = 40


def positions(frame: Array) -> tuple[int, int, int]:
    """Return row and column of the ball, and the column of the bat."""
    board = frame[::CELL_PIXELS, ::CELL_PIXELS]
    (row,), (column,) = (board == 255).nonzero()
    return int(row), int(column), int((board[-1] == 128).nonzero()[0][0])


def towards(target: int, bat: int) -> int:
    return STAY + int(np.sign(target - bat))


def follow(stack: Array) -> int:
    """Go to where the ball is."""
    _, column, bat = positions(stack[..., -1])
    return towards(column, bat)


def foresee(stack: Array) -> int:
    """Go to where the ball will arrive, once two frames of it tell."""
    (earlier_row, earlier, _), (row, column, bat) = positions(stack[..., -2]), positions(stack[..., -1])
    if row != earlier_row + 1:
        return towards(column, bat)
    direction = column - earlier
    for _ in range(CELLS - 1 - row):
        if not 0 <= column + direction < CELLS:
            direction = -direction
        column += direction
    return towards(column, bat)


def mean_return(play: object) -> float:
    vector = make_vector_env(EnvConfig(CATCH), 1)
    obs, _ = vector.reset(seed=0)
    total, episodes = 0.0, 0
    while episodes < EPISODES:
        obs, rewards, terminated, _, _ = vector.step(np.array([play(obs[0])]))  # type: ignore[operator]
        total, episodes = total + float(rewards[0]), episodes + int(terminated[0])
    return total / EPISODES


def test_who_sees_the_direction_catches_nearly_all() -> None:
    assert mean_return(foresee) > 0.8 * BALLS


def test_who_sees_one_frame_misses_what_falls_aslant() -> None:
    assert mean_return(follow) < 0


ROOM = "tests.lab.wrappers"
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
    env = make_env(EnvConfig(PIXEL_ENV, frames=frames, wrappers=wrapped.wrappers))
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
    where = "tests/lab/wrappers.py:" if fault == "raises" else "step returned an observation of shape (2,)"
    assert where in caught.value.message
    assert caught.value.hint in ("correct the wrapper", "correct step of the wrapper")


def test_error_of_the_env_names_the_env_alone() -> None:
    env = make_env(config(named("Plus", factor=1), env="tests.lab.envs:RaisingEnv"))
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
