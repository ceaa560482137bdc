"""Envs that installed packages bring by entry points: found by their ids, loaded only then, never from a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from rlexp.config.keys import env_ids as entry_points
from rlexp.config.keys.env_ids import brought_by, is_known, package_of, why_unknown
from rlexp.config.keys.user_code import UserModules
from rlexp.envs import EnvConfig, make_env, make_vector_env, registry
from rlexp.errors import UsageError
from rlexp.terminal.explanations import print_explanation
from rlexp.user_code.trusted_code import TrustedCode
from tests.envs import CountingEnv

CODE = """
import gymnasium
from tests.envs import CountingEnv

calls = []

class Env(CountingEnv):
    pass

def register():
    calls.append("register")
    gymnasium.register("labyrinths/Large-v0", entry_point="labyrinth_code:Env")

def raises():
    raise RuntimeError("no licence")

constant = 3
"""
ENTRY_POINTS = """[rlexp.envs]
Labyrinth-v0 = labyrinth_code:Env
CartPole-v1 = labyrinth_code:Env
labyrinths = labyrinth_code:register
broken = labyrinth_code:raises
odd = labyrinth_code:constant
several = labyrinth_code:Env
gone = labyrinth_code:removed
"""


def install(folder: Path, package: str, entry_points: str) -> None:
    """Write what pip writes of an installed package that has one module."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, with one that brings envs."""
    install(tmp_path / "site", "labyrinth", ENTRY_POINTS)
    (tmp_path / "site" / "labyrinth_code.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(entry_points, "INSTALLED_IN", (str(tmp_path / "site"),))
    monkeypatch.delitem(sys.modules, "labyrinth_code", raising=False)
    registry._loaded.cache_clear()
    entry_points._entry_points.cache_clear()
    yield tmp_path / "site"
    gym.registry.pop("labyrinths/Large-v0", None)


def config(env: str) -> EnvConfig:
    return EnvConfig(env, {}, None)


@pytest.mark.usefixtures("site_packages")
def test_entry_point_of_a_class_makes_an_env_by_its_name() -> None:
    assert is_known("Labyrinth-v0")
    assert "labyrinth_code" not in sys.modules, "asking whether an id is known imports nothing"
    assert isinstance(make_env(config("Labyrinth-v0")).unwrapped, CountingEnv)


@pytest.mark.usefixtures("site_packages")
def test_entry_point_of_a_function_is_called_once_and_registers_its_namespace() -> None:
    for _ in range(2):
        assert make_vector_env(config("labyrinths/Large-v0"), 2).num_envs == 2
    assert sys.modules["labyrinth_code"].calls == ["register"]
    with pytest.raises(UsageError, match="labyrinths/Small-v0 is not a Gymnasium environment"):
        make_env(config("labyrinths/Small-v0"))


@pytest.mark.usefixtures("site_packages")
def test_entry_point_takes_the_place_of_no_known_env() -> None:
    assert not isinstance(make_env(config("CartPole-v1")).unwrapped, CountingEnv)
    assert brought_by("CartPole-v1") is None
    assert brought_by("labyrinth_code:Env") is None


@pytest.mark.usefixtures("site_packages")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("broken/Env-v0", "labyrinth_code:raises raised RuntimeError: no licence"),
        ("odd/Env-v0", "is neither a class nor a function"),
        ("gone/Env-v0", "module labyrinth_code has no removed"),
        ("several/Env-v0", "has an entry point 'several' for a class"),
    ],
)
def test_faulty_entry_point_names_its_package(env: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(config(env))
    assert message in caught.value.message
    assert "package labyrinth" in caught.value.message


def test_two_packages_with_the_same_name_are_refused(site_packages: Path) -> None:
    install(site_packages, "another", "[rlexp.envs]\nLabyrinth-v0 = another:Env\n")
    with pytest.raises(UsageError, match="both bring envs as Labyrinth-v0") as caught:
        make_env(config("Labyrinth-v0"))
    assert "another" in caught.value.message
    assert "labyrinth" in caught.value.message


@pytest.mark.usefixtures("site_packages")
def test_explain_lists_what_packages_bring(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation("env")
    assert "Labyrinth-v0" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("site_packages")
def test_nodes_and_hints_learn_which_package_brings_an_env() -> None:
    package = package_of("labyrinths/Large-v0")
    assert package is not None
    assert (package.module, package.requirement) == ("labyrinth_code", "labyrinth")
    assert "Labyrinth-v0" in why_unknown("Labirynth")[1]


def test_entry_points_in_folders_of_experiments_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "labyrinth", ENTRY_POINTS)
    (tmp_path / "labyrinth_code.py").write_text(CODE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError, match="Labyrinth-v0 is not a Gymnasium environment"):
        make_env(EnvConfig("Labyrinth-v0", {}, None, modules=UserModules(("json",), (str(tmp_path),))))
    assert str(tmp_path) in sys.path


@pytest.mark.usefixtures("site_packages")
def test_joined_actor_plays_a_packages_env_only_where_it_is_allowed() -> None:
    obstacle = TrustedCode().obstacle("Labyrinth-v0", {}, (), ())
    assert obstacle is not None
    assert obstacle.hint == "--allow-env Labyrinth-v0 allows it"
    assert TrustedCode(frozenset({"Labyrinth-v0"})).obstacle("Labyrinth-v0", {}, (), ()) is None
