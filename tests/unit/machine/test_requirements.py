"""What is not installed or not there is found from the file alone; no module of the user's is imported."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room import check_requirements
from rlexp.config.command_line import LoadOptions
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError
from rlexp.user_code.finding import find_module

MODULE = """
import gymnasium
exit("it was imported")
class Plain: pass
class Below(Plain): pass
class Odd(dict): pass
class Maze(gymnasium.Env): pass
Alias = Maze
def make(): return Maze()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_maze.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "open_module.py").write_text("from gymnasium import *\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("class Maze(:\n", encoding="utf-8")
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text('raise SystemExit("it was imported")\n', encoding="utf-8")
    (package / "envs.py").write_text("class Maze(Base): pass\n", encoding="utf-8")
    (tmp_path / "without_init" / "below").mkdir(parents=True)
    (tmp_path / "without_init" / "below" / "envs.py").write_text("class Maze(Base): pass\n", encoding="utf-8")
    return tmp_path


def problems(folder: Path, env: str, imports: tuple[str, ...] = (), **keys: Any) -> list[tuple[str, str]]:
    """Return place and message of what is missing for an experiment in ``folder``."""
    file = folder / "maze.yaml"
    file.write_text(to_yaml({"maze": {"run": "DQN", "env": env, **keys}}), encoding="utf-8")
    try:
        check_requirements(load_plan([file], options=LoadOptions(imports=imports)))
    except ConfigError as error:
        return [(problem.where.replace(str(folder), ""), problem.message) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "env",
    [
        *("my_maze:Maze", "my_maze:Alias", "open_module:Anything", "my_package.envs:Maze", "CartPole-v1"),
        *("without_init.below.envs:Maze", "tests.behaviour.failing_env:FailsOnceEnv"),
    ],
)
def test_check_requirements_accepts_possible_env(folder: Path, env: str) -> None:
    assert problems(folder, env) == []


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("my_mazes:Maze", "module my_mazes does not exist"),
        ("my_package.mazes:Maze", "module my_package.mazes does not exist"),
        ("my_maze.envs:Maze", "module my_maze.envs does not exist"),
        ("without_init.above.envs:Maze", "module without_init.above.envs does not exist"),
        ("my_maze:Mase", "module my_maze has no Mase"),
        ("my_maze:Plain", "Plain ({folder}/my_maze.py:4) is not a gymnasium.Env"),
        ("my_maze:Below", "Below ({folder}/my_maze.py:5) is not a gymnasium.Env"),
        ("my_maze:Odd", "Odd ({folder}/my_maze.py:6) is not a gymnasium.Env"),
        ("my_maze:make", "make ({folder}/my_maze.py:9) is not a gymnasium.Env"),
    ],
)
def test_missing_env_is_an_error_with_place(folder: Path, env: str, message: str) -> None:
    assert problems(folder, env) == [("/maze.yaml:3:8", f"env {env}: {message.format(folder=folder)}")]


def test_missing_wrappers_and_preprocessors_are_errors_with_their_places(folder: Path) -> None:
    wrappers = ["my_maze:Maze", "my_maze:Wall", {"no_such:W": {"x": 1}}, "my_maze:make"]
    config = {"env_wrappers": wrappers, "model": {"custom_preprocessor": "my_maze:Plain"}}
    found = problems(folder, "CartPole-v1", config=config)
    lines = (folder / "maze.yaml").read_text(encoding="utf-8").splitlines()
    row, line = next((row, line) for row, line in enumerate(lines, 1) if "my_maze:Wall" in line)
    last, below = next((row, line) for row, line in enumerate(lines, 1) if "my_maze:Plain" in line)
    no_wrapper = f"make ({folder}/my_maze.py:9) is not a gymnasium.Wrapper"
    no_preprocessor = f"Plain ({folder}/my_maze.py:4) is not a rlexp.envs.Preprocessor"
    assert [message for _, message in found] == [
        "config.env_wrappers.1 my_maze:Wall: module my_maze has no Wall",
        "config.env_wrappers.2 no_such:W: module no_such does not exist",
        f"config.env_wrappers.3 my_maze:make: {no_wrapper}",
        f"config.model.custom_preprocessor my_maze:Plain: {no_preprocessor}",
    ]
    columns = [line.index(text) + 1 for text in ("'my_maze:Wall", "{'no_such:W", "'my_maze:make")]
    places = [f"/maze.yaml:{row}:{column}" for column in columns]
    assert [place for place, _ in found] == [*places, f"/maze.yaml:{last}:{below.index('my_maze:Plain') + 1}"]


def test_env_of_pettingzoo_is_refused_with_the_reason(folder: Path) -> None:
    ((place, message),) = problems(folder, "pettingzoo.butterfly.pistonball_v6:parallel_env")
    assert place == "/maze.yaml:3:8"
    assert "is an environment of PettingZoo, for several agents" in message


def test_module_with_a_syntax_error_names_the_line(folder: Path) -> None:
    ((place, message),) = problems(folder, "broken:Maze")
    assert place == "/maze.yaml:3:8"
    assert message.startswith(f"env broken:Maze: {folder}/broken.py:1 cannot be read: ")


def test_imported_module_that_does_not_exist_is_named(folder: Path) -> None:
    assert problems(folder, "Any-v0", imports=("my_maze",)) == []
    assert problems(folder, "Any-v0", imports=("no_such",)) == [("--import no_such", "module no_such does not exist")]


@pytest.mark.parametrize(
    ("env", "module"),
    [
        ("LunarLander-v3", "Box2D"),
        ("BipedalWalker-v3", "Box2D"),
        ("HalfCheetah-v5", "mujoco"),
        ("ALE/Pong-v5", "ale_py"),
        ("PongNoFrameskip-v4", "ale_py"),
        ("phys2d/CartPole-v1", "jax"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid"),
        ("MinAtar/Breakout-v1", "minatar"),
        ("envpool:Pong-v5", "envpool"),
    ],
)
def test_package_that_an_id_needs_is_named(
    folder: Path, env: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    for installed in (True, False):
        found = find_spec("json") if installed else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == module else find_spec(name))  # noqa: B023
        expected = [] if installed else [("/maze.yaml:3:8", f"env {env}: {module} is not installed")]
        assert problems(folder, env, config={"discretize_actions": 3}) == expected


@pytest.mark.parametrize(
    ("env", "extra"),
    [("HalfCheetah-v5", "mujoco"), ("Humanoid-v2", "mujoco"), ("LunarLander-v2", "box2d"), ("CarRacing-v3", "box2d")],
)
def test_extra_that_an_id_needs_is_in_hint(folder: Path, env: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    file = folder / "maze.yaml"
    file.write_text(to_yaml({"maze": {"run": "PPO", "env": env, "stop": {"time_total_s": 1}}}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check_requirements(load_plan([file]))
    (problem,) = caught.value.problems
    assert problem.hint == f"pip install 'rlexp[{extra}]'"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]


def test_modules_of_folders_come_after_installed_ones(folder: Path) -> None:
    (folder / "json.py").touch()
    (folder / "colorsys.py").touch()
    for name in ("json", "colorsys"):
        found = find_module(name, [str(folder)])
        assert found is not None
        assert str(folder) not in str(found.origin)


@pytest.mark.parametrize(
    ("env", "env_config"),
    [
        ("Pendulum-v1", {}),
        ("HalfCheetah-v5", {}),
        ("CarRacing-v3", {}),
        ("LunarLander-v3", {"continuous": True}),
        ("LunarLanderContinuous-v3", {}),
    ],
)
def test_continuous_actions_are_refused_for_q_learning(folder: Path, env: str, env_config: dict[str, Any]) -> None:
    file = folder / "maze.yaml"
    entry = {"run": "APEX", "env": env, "config": {"env_config": env_config}}
    file.write_text(to_yaml({"maze": entry}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_plan([file])
    (problem,) = caught.value.problems
    assert problem.where == f"{file}:3:3"
    assert problem.message == f"env {env} has continuous actions; DQN and APEX need discrete ones"
    assert "discretize_actions" in str(problem.hint)
    load_plan([file], ["config.discretize_actions=3"])


@pytest.mark.parametrize(
    ("env", "env_config"), [("CarRacing-v3", {"continuous": False}), ("LunarLander-v3", {}), ("MountainCar-v0", {})]
)
def test_discrete_actions_pass(folder: Path, env: str, env_config: dict[str, Any]) -> None:
    file = folder / "maze.yaml"
    file.write_text(to_yaml({"maze": {"run": "DQN", "env": env, "config": {"env_config": env_config}}}))
    load_plan([file])
