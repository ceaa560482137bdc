"""Envs are made by their names, of packages too, and loaded only then; what cannot be played is refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rlexp.config.keys import user_code
from rlexp.config.keys.env_ids import brought_by, is_known, package_of, why_unknown
from rlexp.config.keys.user_code import UserClass, UserModules
from rlexp.envs import registry
from rlexp.envs.make import make_env, make_own_env, make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.errors import UsageError
from rlexp.terminal.explanations import print_explanation
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.envs import COUNTING_ENV, CountingEnv, CountingVectorEnv
from tests.lab.parallel import Relay

CODE = """
import gymnasium
from tests.lab.envs import CountingEnv

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
    monkeypatch.setattr(user_code, "INSTALLED_IN", (str(tmp_path / "site"),))
    monkeypatch.delitem(sys.modules, "labyrinth_code", raising=False)
    registry._loaded.cache_clear()
    user_code._entry_points.cache_clear()
    yield tmp_path / "site"
    gym.registry.pop("labyrinths/Large-v0", None)


@pytest.mark.usefixtures("site_packages")
def test_entry_point_of_a_class_makes_an_env_by_its_name() -> None:
    assert is_known("Labyrinth-v0")
    assert "labyrinth_code" not in sys.modules, "asking whether an id is known imports nothing"
    assert isinstance(make_env(EnvConfig("Labyrinth-v0")).unwrapped, CountingEnv)


@pytest.mark.usefixtures("site_packages")
def test_entry_point_of_a_function_is_called_once_and_registers_its_namespace() -> None:
    for _ in range(2):
        assert make_vector_env(EnvConfig("labyrinths/Large-v0"), 2).num_envs == 2
    assert sys.modules["labyrinth_code"].calls == ["register"]
    with pytest.raises(UsageError, match="labyrinths/Small-v0 is not a Gymnasium environment"):
        make_env(EnvConfig("labyrinths/Small-v0"))


@pytest.mark.usefixtures("site_packages")
def test_entry_point_takes_the_place_of_no_known_env() -> None:
    assert not isinstance(make_env(EnvConfig("CartPole-v1")).unwrapped, CountingEnv)
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
        make_env(EnvConfig(env))
    assert message in caught.value.message
    assert "package labyrinth" in caught.value.message


def test_two_packages_with_the_same_name_are_refused(site_packages: Path) -> None:
    install(site_packages, "another", "[rlexp.envs]\nLabyrinth-v0 = another:Env\n")
    with pytest.raises(UsageError, match="both bring envs as Labyrinth-v0") as caught:
        make_env(EnvConfig("Labyrinth-v0"))
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
        make_env(EnvConfig("Labyrinth-v0", modules=UserModules(("json",), (str(tmp_path),))))
    assert str(tmp_path) in sys.path


@pytest.mark.usefixtures("site_packages")
def test_joined_actor_plays_a_packages_env_only_where_it_is_allowed() -> None:
    obstacle = TrustedCode().obstacle("Labyrinth-v0", {}, (), ())
    assert obstacle is not None
    assert obstacle.hint == "--allow-env Labyrinth-v0 allows it"
    assert TrustedCode(frozenset({"Labyrinth-v0"})).obstacle("Labyrinth-v0", {}, (), ()) is None


NATIVE_ENV = "CartPole-v1"
SYNC_ENV = "Acrobot-v1"


def refused(wrong: EnvConfig) -> UsageError:
    """Return the error with which both ways of making an env answer."""
    with pytest.raises(UsageError) as single:
        make_env(wrong)
    with pytest.raises(UsageError) as vector:
        make_vector_env(wrong, 2)
    assert single.value.hint == vector.value.hint
    return single.value


def endings(env: str, horizon: int | None, steps: int) -> list[tuple[list[bool], list[bool]]]:
    """Step two envs; return who terminated and who was truncated, step by step."""
    vector = make_vector_env(EnvConfig(env, horizon=horizon), 2)
    vector.reset(seed=1)
    flags = []
    for step in range(steps):
        _, _, terminated, truncated, _ = vector.step(np.array([step % 2, step % 2]))
        flags.append((terminated.tolist(), truncated.tolist()))
    vector.close()
    return flags


def test_makes_an_env_by_its_gymnasium_id_with_its_arguments() -> None:
    env = make_env(EnvConfig("FrozenLake-v1", env_config={"map_name": "8x8"}))
    assert env.observation_space == gym.spaces.Discrete(64)


@pytest.mark.parametrize("kind", ["TakingEnv", "TakingVectorEnv", "TakingAgents", "registered", "wrapper"])
def test_what_an_env_takes_out_of_its_arguments_is_there_for_the_others(kind: str) -> None:
    name, options = f"{__name__}:{kind}", {"options": {"fee": 3}}
    config = EnvConfig(name, options)
    if kind == "registered":
        gym.register("Taking-v0", f"{__name__}:TakingEnv", vector_entry_point=f"{__name__}:TakingVectorEnv")
        config = EnvConfig("Taking-v0", options)
    elif kind == "wrapper":
        config = EnvConfig(COUNTING_ENV, wrappers=(UserClass(f"{__name__}:TakingWrapper", options),))
    for _ in range(2):
        make_vector_env(config, 2).close()
    make_own_env(config).close()
    gym.registry.pop("Taking-v0", None)
    assert options == {"options": {"fee": 3}}


class TakingEnv(CountingEnv):
    """Takes an option out of those that it is given, and fails without it, as its likes below do."""

    def __init__(self, options: dict[str, int]) -> None:
        super().__init__()
        options.pop("fee")


class TakingVectorEnv(CountingVectorEnv):
    def __init__(self, num_envs: int, options: dict[str, int]) -> None:
        super().__init__(num_envs)
        options.pop("fee")


class TakingAgents(Relay):
    def __init__(self, options: dict[str, int]) -> None:
        super().__init__()
        options.pop("fee")


class TakingWrapper(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], options: dict[str, int]) -> None:
        super().__init__(env)
        options.pop("fee")


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:run", "builtins:open", "io:FileIO", "tests.lab.envs:COUNTING_ENV"]
)
def test_make_env_does_not_call_other_objects(name: str, tmp_path: Path) -> None:
    touch = f"touch {tmp_path / 'file'}"
    arguments: dict[str, dict[str, Any]] = {
        "os:system": {"command": touch},
        "subprocess:run": {"args": touch, "shell": True},
        "builtins:open": {"file": str(tmp_path / "file"), "mode": "w"},
        "io:FileIO": {"file": str(tmp_path / "file"), "mode": "w"},
    }
    error = refused(EnvConfig(name, arguments.get(name, {})))
    assert "is not a gymnasium.Env" in error.message
    assert not (tmp_path / "file").exists()


def test_renders_where_asked_to() -> None:
    env = make_env(EnvConfig("FrozenLake-v1"), render_mode="ansi")
    assert env.render_mode == "ansi"


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("CartPoel-v1", "CartPoel-v1", "did you mean CartPole-v1?"),
        ("Qwxyz-v0", "", "write a Gymnasium id or package.module:Class, or install the package that brings the env"),
        ("tests.lab.envs:CountignEnv", "tests.lab.envs has no CountignEnv", "did you mean CountingEnv?"),
        ("tests.no_such_module:Env", "tests.no_such_module cannot be imported", ""),
    ],
)
def test_wrong_name_of_an_env_gets_a_hint(env: str, message: str, hint: str) -> None:
    error = refused(EnvConfig(env))
    assert message in error.message
    assert error.hint is not None
    assert error.hint.startswith(hint)


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV])
def test_limit_of_gymnasiums_is_refused_with_the_key_for_it(env: str) -> None:
    error = refused(EnvConfig(env, env_config={"max_episode_steps": 7}))
    assert error.message == f"env {env}: max_episode_steps is not an argument of the env itself"
    assert error.hint == "write horizon: 7 beside env_config instead"


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV, COUNTING_ENV])
def test_unknown_argument_points_to_env_config(env: str) -> None:
    error = refused(EnvConfig(env, env_config={"no_such_argument": 1}))
    assert "no_such_argument" in error.message
    assert error.hint is not None
    assert "env_config" in error.hint


def test_a_native_vector_env_is_used_where_there_is_one() -> None:
    assert not isinstance(make_vector_env(EnvConfig(NATIVE_ENV), 2).unwrapped, SyncVectorEnv)
    assert isinstance(make_vector_env(EnvConfig(SYNC_ENV), 2).unwrapped, SyncVectorEnv)


@pytest.mark.parametrize("env_config", [{}, {"sutton_barto_reward": True}])
@pytest.mark.parametrize("horizon", [None, 7])
def test_one_env_by_itself_plays_as_the_native_vector_env_does(env_config: dict[str, Any], horizon: int | None) -> None:
    vector = make_vector_env(EnvConfig(NATIVE_ENV, horizon=horizon, env_config=env_config), 1)
    kwargs = env_config | ({} if horizon is None else {"max_episode_steps": horizon})
    native = gym.make_vec(NATIVE_ENV, 1, vectorization_mode="vector_entry_point", **kwargs)
    assert isinstance(vector.unwrapped, SyncVectorEnv)
    assert not isinstance(native.unwrapped, SyncVectorEnv)
    np.testing.assert_array_equal(vector.reset(seed=3)[0], native.reset(seed=3)[0], strict=True)
    ends = np.zeros(2, np.int64)
    for action in np.random.default_rng(0).integers(0, 2, (400, 1)):
        step, expected = vector.step(action)[:4], native.step(action)[:4]
        for part, expected_part in zip(step, expected, strict=True):
            np.testing.assert_array_equal(part, expected_part)
        ends += np.concatenate(step[2:4])
    assert (ends > 0).tolist() == [horizon is None, horizon is not None]


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV])
def test_the_horizon_truncates_and_does_not_terminate(env: str) -> None:
    flags = endings(env, horizon=4, steps=9)
    cut = ([False, False], [True, True])
    going_on = ([False, False], [False, False])
    # The fifth step is the reset, so the second episode ends with the ninth.
    assert flags == [going_on] * 3 + [cut] + [going_on] * 4 + [cut]


def test_the_horizon_cuts_a_class_of_the_users_own() -> None:
    # Episode 0 lasts 3 steps anyway, episode 1 would last 7 and is cut after 5.
    flags = endings(COUNTING_ENV, horizon=5, steps=9)
    ends = [(step, terminated, truncated) for step, (terminated, truncated) in enumerate(flags, 1) if any(truncated)]
    assert ends == [(3, [False, False], [True, True]), (9, [False, False], [True, True])]


def test_a_horizon_beyond_the_envs_own_limit_changes_nothing() -> None:
    limit = gym.spec("MountainCar-v0").max_episode_steps
    assert limit == 200
    assert make_env(EnvConfig("MountainCar-v0", horizon=10_000)).spec == make_env(EnvConfig("MountainCar-v0")).spec
    truncations = [
        step for step, (_, truncated) in enumerate(endings("MountainCar-v0", 10_000, 201), 1) if truncated[0]
    ]
    assert truncations == [200]


BREAKOUT = EnvConfig("MinAtar/Breakout-v1")
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
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
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
    assert env.action_space == gym.spaces.Discrete(3)
    assert not caplog.records


def test_missing_minatar_has_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.delitem(sys.modules, "minatar.gym", raising=False)
    with pytest.raises(UsageError, match="needs MinAtar") as caught:
        make_env(BREAKOUT)
    assert caught.value.hint == "pip install 'rlexp[minatar]'"


def test_class_of_ones_own_with_such_a_name_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lonely")
    module.ParallelEnv = type("ParallelEnv", (CountingEnv,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lonely", module)
    make_env(EnvConfig("lonely:ParallelEnv")).close()
