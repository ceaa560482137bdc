"""Ids of environments of all ages, without importing any environment."""

from typing import Any

import gymnasium
import pytest

from rlexp.config.keys.env_ids import (
    ATARI_GAMES,
    GYMNASIUM_IDS,
    LATER_VERSIONS,
    MUJOCO_TASKS,
    current_env,
    is_atari,
    is_known,
)
from rlexp.config.load import resolved_yaml
from tests.lab.experiment_files import Load, planned, problems

SPEEDS = ("", "NoFrameskip", "Deterministic")


@pytest.mark.parametrize(
    "env", sorted({*GYMNASIUM_IDS, *LATER_VERSIONS.values(), *(f"{task}-v4" for task in MUJOCO_TASKS)})
)
def test_known_ids_match_gymnasium_registry(env: str) -> None:
    assert env in gymnasium.registry
    assert is_known(env)
    assert current_env(env) is None


def test_known_games_are_those_of_ale_py() -> None:
    pytest.importorskip("ale_py")
    forms = [f"{ram}{speed}-v{version}" for ram in ("", "-ram") for speed in SPEEDS for version in "045"]
    ids = {f"{prefix}{game}{form}" for game in ATARI_GAMES for form in forms for prefix in ("", "ALE/")}
    assert {env for env in ids if is_known(env)} == ids & set(gymnasium.registry)
    old = {env: current_env(env) for env in ids - set(gymnasium.registry)}
    current = {found[0] for found in old.values() if found is not None}
    assert len(current) > len(ATARI_GAMES)
    assert all(is_known(env) for env in current if env.startswith("ALE/"))


@pytest.mark.parametrize("env", LATER_VERSIONS)
def test_old_ids_are_not_known(env: str) -> None:
    assert env not in gymnasium.registry
    assert not is_known(env)


def of_every_frame(frameskip: int, repeat: float, **others: str) -> dict[str, Any]:
    """Return what the ids with "Deterministic" mean."""
    return {"frameskip": frameskip, "repeat_action_probability": repeat, "full_action_space": False, **others}


@pytest.mark.parametrize(
    ("env", "current", "settings"),
    [
        ("Acrobot-v0", "Acrobot-v1", {}),
        ("ale_py:ALE/Pong-v5", "ALE/Pong-v5", {}),
        ("PongDeterministic-v4", "ALE/Pong-v5", of_every_frame(4, 0.0)),
        ("SpaceInvadersDeterministic-v0", "ALE/SpaceInvaders-v5", of_every_frame(3, 0.25)),
        ("Pong-ram-v4", "Pong-v4", {"obs_type": "ram"}),
        ("Pong-ram-v0", "Pong-v0", {"obs_type": "ram"}),
        ("Pong-ramNoFrameskip-v4", "PongNoFrameskip-v4", {"obs_type": "ram"}),
        ("ALE/Pong-ram-v5", "ALE/Pong-v5", {"obs_type": "ram"}),
        ("ale_py:ALE/Pong-ram-v5", "ALE/Pong-v5", {"obs_type": "ram"}),
        ("Pong-ramDeterministic-v4", "ALE/Pong-v5", of_every_frame(4, 0.0, obs_type="ram")),
        ("my.module.Maze", "my.module:Maze", {}),
    ],
)
def test_current_env_of_old_ids(load: Load, env: str, current: str, settings: dict[str, Any]) -> None:
    plan = load(env=env)
    experiment = plan.trials[0].experiment
    assert (experiment.env, experiment.config.env_config) == (current, settings)
    assert plan.notices[0].where == "f.yaml:3:3"
    assert plan.notices[0].message.startswith(f"env: {env} is {current}")


@pytest.mark.parametrize(
    ("env", "current"), [("Pendulum-v0", "Pendulum-v1"), ("Hopper-v1", "Hopper-v4"), ("Pusher-v2", "Pusher-v5")]
)
def test_current_env_of_old_continuous_ids(env: str, current: str) -> None:
    assert current_env(env) == (current, {})


@pytest.mark.parametrize(
    "env",
    ["CartPole-v0", "CartPole-v1", "BreakoutNoFrameskip-v4", "ALE/Breakout-v5", "Pong-v4", "a.b:C", "a:ns/Maze-v0"],
)
def test_current_env_of_current_ids_is_none(load: Load, env: str) -> None:
    plan = load(env=env)
    assert plan.trials[0].experiment.env == env
    assert plan.notices == ()


def test_old_id_keeps_env_config_of_user(load: Load) -> None:
    experiment = load("env_config: {frameskip: 2}", env="PongDeterministic-v4").trials[0].experiment
    assert experiment.config.env_config["frameskip"] == 2


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("CartPol-v1", "is not a Gymnasium environment", "did you mean CartPole-v1?"),
        ("BrekoutNoFrameskip-v4", "is not a Gymnasium environment", "did you mean BreakoutNoFrameskip-v4?"),
        ("KaboomNoFrameskip-v4", "is not a Gymnasium environment", "did you mean ALE/Kaboom-v5?"),
        ("Tetris-v4", "is not a Gymnasium environment", "did you mean ALE/Tetris-v5?"),
        ("flatland_sparse", "is not a Gymnasium environment", "--import MODULE"),
        ("ray.rllib.examples.env.two_step_game.TwoStepGame", "is a class of RLlib", "package.module:Class"),
    ],
)
def test_unknown_id_is_refused_with_hint(load: Load, env: str, message: str, hint: str) -> None:
    ((where, found, found_hint),) = problems(load, env=env)
    assert where == "f.yaml:3:8"
    assert found.startswith(f"env {env} {message}")
    assert hint in (found_hint or "")


def test_unknown_id_passes_with_imports(load: Load) -> None:
    plan = load(env="flatland_sparse", imports=("flatland.envs",))
    assert plan.trials[0].experiment.env == "flatland_sparse"
    assert plan.modules.imports == ("flatland.envs",)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("ALE/Pong-v5", True),
        ("PongNoFrameskip-v4", True),
        ("Pong-ram-v4", False),
        ("CartPole-v1", False),
        ("a.b:PongNoFrameskip", False),
    ],
)
def test_is_atari(env: str, expected: bool) -> None:
    assert is_atari(env) == expected


def test_grid_of_old_ids_makes_a_trial_of_each(load: Load) -> None:
    plan = load(env="{grid_search: [PongDeterministic-v4, SpaceInvadersDeterministic-v4]}")
    experiments = [trial.experiment for trial in plan.trials]
    assert [experiment.env for experiment in experiments] == ["ALE/Pong-v5", "ALE/SpaceInvaders-v5"]
    assert [experiment.config.env_config["frameskip"] for experiment in experiments] == [4, 3]
    assert planned(resolved_yaml(plan)).trials == plan.trials
    plan = load(env="{grid_search: [PongDeterministic-v4, QbertDeterministic-v4]}")
    assert [trial.experiment.env for trial in plan.trials] == ["ALE/Pong-v5", "ALE/Qbert-v5"]
