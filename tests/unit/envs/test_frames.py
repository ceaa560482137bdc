from __future__ import annotations

from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

from rlexp.envs import EnvConfig, FrameConfig, make_env, make_vector_env
from rlexp.envs.wrappers import AreaMean, ScaledFrames, StackedFrames
from tests.envs import COUNTING_ENV, IMAGE_ENV, PIXEL_ENV, PixelEnv


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
    single = make_env(EnvConfig(PIXEL_ENV, {}, None, frames=config))
    vector = make_vector_env(EnvConfig(PIXEL_ENV, {}, None, frames=config), 2)
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
    name = "tests.unit.envs.test_frames:AtariLikeEnv"
    env = make_env(EnvConfig(name, {}, None, frames=frames(preprocessing, dim=None)))
    assert env.observation_space.shape == (84, 84, 3)
    assert env.reset(seed=0)[0].shape == (84, 84, 3)


def test_vectors_are_not_scaled() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV, {}, None, frames=frames("rllib")), 1)
    assert vector.single_observation_space.shape == (3,)


def test_image_of_right_size_is_unchanged() -> None:
    vector = make_vector_env(EnvConfig(IMAGE_ENV, {}, None, frames=frames("rllib", dim=84)), 1)
    assert vector.single_observation_space == Box(0, 255, (84, 84, 3), np.uint8)
