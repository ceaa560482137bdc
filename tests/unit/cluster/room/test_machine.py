"""What a machine offers, read from a made-up root folder, and what does not fit it.

What is not installed or not there is found from the file alone; no module of the user's is imported.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import (
    Cluster,
    Machine,
    available_cpus,
    available_gpus,
    check_requirements,
    this_machine,
)
from rlexp.config.command_line import LoadOptions
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError, Problem, ResourceError
from rlexp.user_code.finding import find_module

ALL_CPUS = len(os.sched_getaffinity(0))


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_available_cpus_without_quota_is_affinity(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == ALL_CPUS
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert available_cpus(tmp_path) == ALL_CPUS


@pytest.mark.parametrize("group", ["", "slice/job"])
def test_available_cpus_cgroup_v2_quota(tmp_path: Path, group: str) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/slice/job/step\n")
    put(tmp_path, f"sys/fs/cgroup/{group}/cpu.max", "150000 100000\n")
    assert available_cpus(tmp_path) == 1


def test_available_cpus_cgroup_v1_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert available_cpus(tmp_path) == 1
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    assert available_cpus(tmp_path) == ALL_CPUS


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("0,1,2", 2), ("1,-1,0", 1), ("GPU-8f3c", 1)]
)
def test_available_gpus_are_visible_devices(tmp_path: Path, visible: str | None, count: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}", "")
    assert available_gpus(tmp_path, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count


def test_this_machine_has_cpus_and_memory() -> None:
    machine = this_machine()
    assert 1 <= machine.cpus <= ALL_CPUS
    assert 0 < machine.memory_available <= machine.memory_total


def trial(run: str = "APEX", env: str = "CartPole-v1", **config: Any) -> Trial:
    data = {"name": "a", "run": run, "env": env, "config": config}
    return Trial(0, "0", AGENTS[run].model_validate(data), {}, 0)


def on_cpus(cpus: int) -> Cluster:
    return Cluster.of(Machine(cpus, gpus=0, memory_total=2**33, memory_available=2**32))


def refusal(cluster: Cluster, *trials: Trial) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        check_fits(trials, cluster)
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(
    ("run", "cpus", "config", "message", "hint"),
    [
        (
            *("APEX", 2, {"num_workers": 16}),
            "a needs 17 CPUs (1 driver + 16 workers x 1), this machine has 2",
            "-o config.num_workers=1, or -o config.num_cpus_per_worker=0.06",
        ),
        (
            *("APEX", 2, {"num_workers": 3, "num_cpus_per_worker": 0.5}),
            "a needs 2.5 CPUs (1 driver + 3 workers x 0.5), this machine has 2",
            "-o config.num_workers=2, or -o config.num_cpus_per_worker=0.33",
        ),
        (
            *("APEX", 2, {"num_workers": 200}),
            "a needs 201 CPUs (1 driver + 200 workers x 1), this machine has 2",
            "-o config.num_workers=1",
        ),
        (
            *("APEX", 2, {"num_workers": 1, "num_cpus_for_driver": 3}),
            "a needs 4 CPUs (3 driver + 1 workers x 1), this machine has 2",
            "-o config.num_cpus_for_driver=2 -o config.num_workers=0",
        ),
        (
            *("APEX", 2, {"num_workers": 0, "num_gpus": 1}),
            "a needs 1 GPU (1 learner + 0 workers x 0), this machine has none",
            "-o config.num_gpus=0",
        ),
        (
            *("PPO", 4, {"num_workers": 4, "num_learners": 2}),
            "a needs 7 CPUs (1 driver + 4 workers x 1 + 2 learners x 1), this machine has 4",
            "-o config.num_workers=1, or -o config.num_cpus_per_worker=0.25",
        ),
        (
            *("PPO", 4, {"num_workers": 0, "num_learners": 4}),
            "a needs 5 CPUs (1 driver + 0 workers x 1 + 4 learners x 1), this machine has 4",
            "-o config.num_learners=1",
        ),
        (
            *("PPO", 4, {"num_workers": 4, "num_learners": 4}),
            "a needs 9 CPUs (1 driver + 4 workers x 1 + 4 learners x 1), this machine has 4",
            "-o config.num_learners=1 -o config.num_workers=3, or "
            "-o config.num_learners=1 -o config.num_cpus_per_worker=0.75",
        ),
        (
            *("PPO", 4, {"num_workers": 0, "num_learners": 2, "num_cpus_for_driver": 5}),
            "a needs 7 CPUs (5 driver + 0 workers x 1 + 2 learners x 1), this machine has 4",
            "-o config.num_learners=1 -o config.num_cpus_for_driver=4 -o config.num_workers=0",
        ),
        (
            *("PPO", 4, {"num_workers": 0, "num_learners": 2, "num_gpus": 2}),
            "a needs 2 GPUs (2 learners + 0 workers x 0), this machine has none",
            "-o config.num_gpus=0",
        ),
    ],
)
def test_check_fits_reports_need_and_override(
    run: str, cpus: int, config: dict[str, Any], message: str, hint: str
) -> None:
    error = refusal(on_cpus(cpus), trial(run, **config), trial(run, **config))
    assert [(problem.message, problem.hint) for problem in error.problems] == [(message, f"{hint}, or --fit")]


def test_check_fits_reports_all_shortfalls() -> None:
    trials = trial(num_workers=2), trial(num_workers=1), trial(num_workers=3, num_gpus_per_worker=0.5)
    assert len(refusal(on_cpus(2), *trials).problems) == 3


def test_check_fits_accepts() -> None:
    trials = trial(num_workers=1), trial(num_workers=4, num_cpus_per_worker=0.25), trial(num_workers=0)
    check_fits(trials, on_cpus(2))


@pytest.mark.parametrize(
    ("run", "config", "needed"),
    [("DQN", {"compress_observations": False}, "13.8"), ("APEX", {"replay_storage": "shared_memory"}, "105.4")],
)
def test_check_fits_refuses_replay_larger_than_memory(run: str, config: dict[str, Any], needed: str) -> None:
    game = trial(run, "PongNoFrameskip-v4", buffer_size=2_000_000, num_workers=1, **config)
    assert refusal(on_cpus(2), game).message == f"a may need {needed} GiB for replay, this machine has 8.0 GiB"


def test_check_fits_refuses_custom_resources() -> None:
    racked = trial("DQN", num_workers=1, custom_resources_per_worker={"rack": 2.0})
    assert refusal(on_cpus(8), racked).message.startswith("a needs 2 rack for each worker")


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


def faults(folder: Path, env: str, imports: tuple[str, ...] = (), **keys: Any) -> list[Problem]:
    """Return what is wrong with an experiment in ``folder``, or missing here."""
    file = folder / "maze.yaml"
    file.write_text(to_yaml({"maze": {"run": "DQN", "env": env, **keys}}), encoding="utf-8")
    try:
        check_requirements(load_plan([file], options=LoadOptions(imports=imports)))
    except ConfigError as error:
        return list(error.problems)
    return []


def problems(folder: Path, env: str, imports: tuple[str, ...] = (), **keys: Any) -> list[tuple[str, str]]:
    """Return the place and message of each."""
    found = faults(folder, env, imports, **keys)
    return [(problem.where.replace(str(folder), ""), problem.message) for problem in found]


@pytest.mark.parametrize(
    "env",
    [
        *("my_maze:Maze", "my_maze:Alias", "open_module:Anything", "my_package.envs:Maze", "CartPole-v1"),
        *("without_init.below.envs:Maze", "tests.lab.failing_env:FailsOnceEnv"),
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


def test_class_with_the_methods_of_several_agents_needs_no_base(folder: Path) -> None:
    (folder / "crowd.py").write_text(
        "class Crowd:\n    def action_space(self, agent): ...\n\ndef parallel_env(): ...\n"
    )
    assert problems(folder, "crowd:Crowd") == problems(folder, "crowd:parallel_env") == []


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
    (problem,) = faults(folder, env, run="PPO")
    assert problem.hint == f"pip install 'rlexp[{extra}]'"
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
    (problem,) = faults(folder, env, run="APEX", config={"env_config": env_config})
    assert problem.where == f"{folder / 'maze.yaml'}:3:3"
    assert problem.message == f"env {env} has continuous actions; DQN, APEX, R2D2 and PQN need discrete ones"
    assert "discretize_actions" in str(problem.hint)
    load_plan([folder / "maze.yaml"], ["config.discretize_actions=3"])


@pytest.mark.parametrize(
    ("env", "env_config"), [("CarRacing-v3", {"continuous": False}), ("LunarLander-v3", {}), ("MountainCar-v0", {})]
)
def test_discrete_actions_pass(folder: Path, env: str, env_config: dict[str, Any]) -> None:
    file = folder / "maze.yaml"
    file.write_text(to_yaml({"maze": {"run": "DQN", "env": env, "config": {"env_config": env_config}}}))
    load_plan([file])
