from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlexp.envs import EnvConfig, make_env, make_vector_env
from rlexp.errors import UsageError
from tests.envs import COUNTING_ENV, CountingEnv

NATIVE_ENV = "CartPole-v1"
SYNC_ENV = "Acrobot-v1"


def config(env: str, horizon: int | None = None, env_config: Mapping[str, Any] | None = None) -> EnvConfig:
    return EnvConfig(env, env_config or {}, horizon)


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
    vector = make_vector_env(config(env, horizon), 2)
    vector.reset(seed=1)
    flags = []
    for step in range(steps):
        _, _, terminated, truncated, _ = vector.step(np.array([step % 2, step % 2]))
        flags.append((terminated.tolist(), truncated.tolist()))
    vector.close()
    return flags


def test_makes_an_env_by_its_gymnasium_id_with_its_arguments() -> None:
    env = make_env(config("FrozenLake-v1", env_config={"map_name": "8x8"}))
    assert env.observation_space == gym.spaces.Discrete(64)


def test_make_env_makes_a_users_class() -> None:
    assert isinstance(make_env(config(COUNTING_ENV)).unwrapped, CountingEnv)


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:run", "builtins:open", "io:FileIO", "tests.envs:COUNTING_ENV"]
)
def test_make_env_does_not_call_other_objects(name: str, tmp_path: Path) -> None:
    touch = f"touch {tmp_path / 'file'}"
    arguments: dict[str, dict[str, Any]] = {
        "os:system": {"command": touch},
        "subprocess:run": {"args": touch, "shell": True},
        "builtins:open": {"file": str(tmp_path / "file"), "mode": "w"},
        "io:FileIO": {"file": str(tmp_path / "file"), "mode": "w"},
    }
    error = refused(config(name, env_config=arguments.get(name)))
    assert "is not a gymnasium.Env" in error.message
    assert not (tmp_path / "file").exists()


def test_renders_where_asked_to() -> None:
    env = make_env(config("FrozenLake-v1"), render_mode="ansi")
    assert env.render_mode == "ansi"


def test_a_misspelled_id_gets_a_suggestion() -> None:
    error = refused(config("CartPoel-v1"))
    assert "CartPoel-v1" in error.message
    assert error.hint == "did you mean CartPole-v1?"


def test_unknown_id_has_hint() -> None:
    hint = refused(config("Qwxyz-v0")).hint
    assert hint == "write a Gymnasium id or package.module:Class, or install the package that brings the env"


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV])
def test_limit_of_gymnasiums_is_refused_with_the_key_for_it(env: str) -> None:
    error = refused(config(env, env_config={"max_episode_steps": 7}))
    assert error.message == f"env {env}: max_episode_steps is no argument of the env's own"
    assert error.hint == "write horizon: 7 beside env_config instead"


def test_a_misspelled_class_gets_a_suggestion() -> None:
    error = refused(config("tests.envs:CountignEnv"))
    assert "tests.envs has no CountignEnv" in error.message
    assert error.hint == "did you mean CountingEnv?"


def test_missing_module_is_named() -> None:
    error = refused(config("tests.no_such_module:Env"))
    assert "tests.no_such_module cannot be imported" in error.message
    assert error.hint is not None


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV, COUNTING_ENV])
def test_unknown_argument_points_to_env_config(env: str) -> None:
    error = refused(config(env, env_config={"no_such_argument": 1}))
    assert "no_such_argument" in error.message
    assert error.hint is not None
    assert "env_config" in error.hint


@pytest.mark.parametrize("env", [NATIVE_ENV, SYNC_ENV, COUNTING_ENV])
def test_every_vector_env_resets_on_the_step_after_the_end(env: str) -> None:
    vector = make_vector_env(config(env), 2)
    assert vector.num_envs == 2
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_the_stream_of_observations_holds_the_true_last_one_and_the_next_first() -> None:
    vector = make_vector_env(config(COUNTING_ENV), 1)
    vector.reset(seed=5)
    stream = [vector.step(np.zeros(1, np.int64))[0][0].tolist() for _ in range(4)]
    assert stream == [[5, 0, 1], [5, 0, 2], [5, 0, 3], [5, 1, 0]]


def test_the_copies_have_consecutive_seeds() -> None:
    obs, _ = make_vector_env(config(COUNTING_ENV), 3).reset(seed=7)
    assert obs[:, 0].tolist() == [7, 8, 9]


def test_a_native_vector_env_is_used_where_there_is_one() -> None:
    assert not isinstance(make_vector_env(config(NATIVE_ENV), 2).unwrapped, SyncVectorEnv)
    assert isinstance(make_vector_env(config(SYNC_ENV), 2).unwrapped, SyncVectorEnv)


@pytest.mark.parametrize("env_config", [{}, {"sutton_barto_reward": True}])
@pytest.mark.parametrize("horizon", [None, 7])
def test_one_env_by_itself_plays_as_the_native_vector_env_does(env_config: dict[str, Any], horizon: int | None) -> None:
    vector = make_vector_env(config(NATIVE_ENV, horizon=horizon, env_config=env_config), 1)
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
    assert make_env(config("MountainCar-v0", horizon=10_000)).spec == make_env(config("MountainCar-v0")).spec
    truncations = [
        step for step, (_, truncated) in enumerate(endings("MountainCar-v0", 10_000, 201), 1) if truncated[0]
    ]
    assert truncations == [200]
