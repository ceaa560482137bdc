"""Convolutions that do not fit are known of before an image is seen, as the network itself would say it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import misfit, sides_before_last
from rlexp.config.load import load_plan
from rlexp.errors import UsageError
from rlexp.models import TorsoConfig
from rlexp.models.torsos import make_torso

layers = st.tuples(st.just(2), st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 4))


def torso_config(filters: tuple[ConvFilter, ...]) -> TorsoConfig:
    return TorsoConfig((), "relu", filters, "relu", (), "relu", zero_mean=False)


@settings(max_examples=50)
@given(st.lists(layers, min_size=1, max_size=3), st.integers(1, 30), st.integers(1, 30))
def test_misfit_agrees_with_network(filters: list[ConvFilter], height: int, width: int) -> None:
    if misfit(height, width, filters) is None:
        torso = make_torso((height, width, 1), torso_config(tuple(filters)))
        assert torso(torch.zeros((1, height, width, 1))).shape == (1, torso.num_features)
    else:
        with pytest.raises(UsageError, match=f"do not fit images of {height}x{width}"):
            make_torso((height, width, 1), torso_config(tuple(filters)))


def test_sides_before_last_by_hand() -> None:
    filters = ((16, (8, 8), 4), (32, (4, 4), 2), (256, (11, 11), 1))
    assert sides_before_last(84, 84, filters) == (11, 11)
    assert sides_before_last(84, 42, filters) == (11, 6)
    assert misfit(84, 84, filters) is None
    assert misfit(84, 42, filters) is not None


FILE = """
pong:
  run: DQN
  env: {env}
  config:
    preprocessor_pref: {preference}
    model:
      dim: 42
      conv_filters: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]]
"""


def written(tmp_path: Path, env: str, preference: str) -> Path:
    file = tmp_path / "pong.yaml"
    file.write_text(FILE.format(env=env, preference=preference), encoding="utf-8")
    return file


@pytest.mark.key("model.conv_filters")
@pytest.mark.parametrize("preference", ["deepmind", "rllib"])
def test_load_refuses_filters_that_misfit_atari_frames(tmp_path: Path, preference: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_plan([written(tmp_path, "PongNoFrameskip-v4", preference)])
    text = str(caught.value)
    assert "pong.yaml:9:7" in text
    assert "the last kernel is 11x11, but the output of the layers before it is 6x6" in text


@pytest.mark.parametrize(("env", "preference"), [("PongNoFrameskip-v4", "null"), ("tests.envs:ImageEnv", "deepmind")])
def test_load_accepts_filters_for_images_of_unknown_size(tmp_path: Path, env: str, preference: str) -> None:
    assert load_plan([written(tmp_path, env, preference)]).trials
