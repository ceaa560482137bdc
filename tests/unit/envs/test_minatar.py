"""MinAtar's ids, with a package in its place that registers as it does and warns as it does."""

import importlib
import sys
from pathlib import Path

import gymnasium
import pytest

from rlexp.config.keys.env_ids import is_known, package_of
from rlexp.envs import EnvConfig, make_env
from rlexp.errors import UsageError

BREAKOUT = EnvConfig("MinAtar/Breakout-v1", {}, None)
GAME = """
import logging

import gymnasium
import numpy as np

logging.warning("Cannot import seaborn.")


class Game(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (10, 10, 4), bool)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        return np.zeros((10, 10, 4), bool), {}


def register_envs():
    gymnasium.register("MinAtar/Breakout-v1", Game)
"""


@pytest.fixture
def minatar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "minatar").mkdir()
    (tmp_path / "minatar/__init__.py").touch()
    (tmp_path / "minatar/gym.py").write_text(GAME)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("minatar", "minatar.gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    importlib.invalidate_caches()


def test_only_games_that_minatar_has_are_known() -> None:
    assert is_known("MinAtar/SpaceInvaders-v0")
    package = package_of("MinAtar/Freeway-v1")
    assert package is not None
    assert package.requirement == "rlexp[minatar]"
    assert not is_known("MinAtar/Pong-v1")
    assert not is_known("MinAtar/Breakout-v2")


@pytest.mark.usefixtures("minatar")
def test_minatar_registers_its_games_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(BREAKOUT)
    assert env.observation_space.shape == (10, 10, 4)
    assert env.action_space == gymnasium.spaces.Discrete(3)
    assert not caplog.records


def test_missing_minatar_has_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.delitem(sys.modules, "minatar.gym", raising=False)
    with pytest.raises(UsageError, match="needs MinAtar") as caught:
        make_env(BREAKOUT)
    assert caught.value.hint == "pip install 'rlexp[minatar]'"
