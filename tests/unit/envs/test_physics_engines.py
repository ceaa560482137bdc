"""Envs of Box2D and MuJoCo, which extras bring: made with old ids, played, filmed, and refused without them."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box

from rlexp.config.keys.env_ids import (
    BOX2D_TASKS,
    GYMNASIUM_IDS,
    MUJOCO_TASKS,
    Package,
    current_env,
    has_continuous_actions,
    is_known,
    package_of,
)
from rlexp.envs.make import make_env, make_filmed_env, make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.errors import UsageError

BULLET = EnvConfig("HopperBulletEnv-v0")
CART_POLE = EnvConfig("CartPoleContinuousBulletEnv-v0")


def test_bullet_ids_are_continuous_and_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_continuous_actions(BULLET.env, {})
    assert is_known(BULLET.env)
    assert package_of(BULLET.env) == Package("pybullet_envs_gymnasium", "rlexp[pybullet]")
    assert package_of(CART_POLE.env) == package_of(BULLET.env)
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(UsageError, match="needs PyBullet") as refused:
        make_env(BULLET)
    assert refused.value.hint == "pip install 'rlexp[pybullet]'"


def test_bullet_envs_play() -> None:
    pytest.importorskip("pybullet_envs_gymnasium")
    env = make_env(BULLET)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    env.close()


def test_bullet_s_cart_poles_of_a_process_do_not_disturb_each_other() -> None:
    pytest.importorskip("pybullet_envs_gymnasium")
    alone, (one, other) = make_env(CART_POLE), (make_env(CART_POLE) for _ in range(2))
    for env, seed in ((alone, 3), (one, 3), (other, 4)):
        env.reset(seed=seed)
    alone_then = [alone.step(np.array([5.0], np.float32))[0] for _ in range(9)]
    for expected in alone_then:
        np.testing.assert_array_equal(one.step(np.array([5.0], np.float32))[0], expected)
        assert not np.array_equal(other.step(np.array([-5.0], np.float32))[0], expected)
    assert alone_then[-1][3] > 0.5  # a force to the right moves the cart so


pytest.importorskip("Box2D")
pytest.importorskip("mujoco")
mujoco_env = pytest.importorskip("gymnasium.envs.mujoco.mujoco_env")

OLD_MUJOCO_IDS = [f"{task}-v2" for task in sorted(MUJOCO_TASKS)]
BOX2D_IDS = [env for env in sorted(GYMNASIUM_IDS) if env.rpartition("-")[0] in BOX2D_TASKS - {"CarRacing"}]
CHEETAH = EnvConfig("HalfCheetah-v5")


@pytest.mark.parametrize("env", [*OLD_MUJOCO_IDS, "HalfCheetah-v5", "Humanoid-v5", *BOX2D_IDS])
def test_envs_of_engines_play(env: str) -> None:
    """None of them warns: Gymnasium would advise a later version for most ids of MuJoCo."""
    current, _ = current_env(env) or (env, {})
    vector = make_vector_env(EnvConfig(current, continuous_actions="normalized"), 2)
    obs, _ = vector.reset(seed=0)
    actions = np.zeros(vector.action_space.shape or (), vector.action_space.dtype)
    later, *_ = vector.step(actions)
    assert later.shape == obs.shape == (2, *(vector.single_observation_space.shape or ()))
    assert (later != obs).any()
    vector.close()


def test_normalized_actions_reach_the_bounds_of_humanoid() -> None:
    """They are -0.4 to 0.4, where a policy that acts between -1 and 1 would be cut off."""
    vector = make_vector_env(EnvConfig("Humanoid-v5", continuous_actions="normalized"), 1)
    assert isinstance(vector.single_action_space, Box)
    vector.reset(seed=0)
    vector.step(np.full((1, 17), 0.5, np.float32))
    (env,) = vector.unwrapped.envs  # type: ignore[attr-defined]
    np.testing.assert_allclose(env.unwrapped.data.ctrl, 0.2, rtol=1e-6)


@pytest.mark.parametrize("missing", ["imageio", "glfw"])
def test_missing_part_of_mujoco_has_install_hint(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.mujoco.mujoco_rendering", raising=False)
    with pytest.raises(UsageError, match=missing) as caught:
        make_env(CHEETAH)
    assert caught.value.hint == "pip install 'rlexp[mujoco]'"


def test_missing_pygame_of_lunar_lander_has_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match="pygame is not installed") as caught:
        make_filmed_env(EnvConfig("LunarLander-v3"))
    assert caught.value.hint == "pip install 'rlexp[box2d]'"


@pytest.mark.parametrize(
    ("display", "given", "expected"), [(None, None, "egl"), (None, "osmesa", "osmesa"), (":0", None, None)]
)
def test_filmed_mujoco_chooses_egl_without_screen(
    display: str | None, given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def render(env: object) -> None:
        seen.append(os.environ.get("MUJOCO_GL"))
        raise RuntimeError("no OpenGL")

    monkeypatch.setattr(mujoco_env.MujocoEnv, "render", render)
    for name, value in (("DISPLAY", display), ("MUJOCO_GL", given)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=r"HalfCheetah-v5 cannot be recorded: .*no OpenGL") as caught:
        make_filmed_env(CHEETAH)
    assert seen == [expected]
    assert "MUJOCO_GL=osmesa" in str(caught.value.hint)
