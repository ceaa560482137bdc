"""Cart poles beside Gymnasium's: RLlib's, which show less or fail, and PyBullet's, which takes a force."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box

from rlexp.sample_batch import Array

Options = Mapping[str, Any]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class StatelessCartPole(CartPoleEnv):
    """CartPole that shows the place of the cart and the angle of the pole, but no velocities."""

    def __init__(self, config: Options | None = None, render_mode: str | None = None, **options: Any) -> None:
        given_options(self, config, options)
        super().__init__(render_mode=render_mode)
        limits = np.array([self.x_threshold, self.theta_threshold_radians], np.float32) * 2
        self.observation_space = Box(-limits, limits, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[[0, 2]], info

    def step(self, action: Any) -> Step:
        observation, *rest = super().step(action)  # type: ignore[no-untyped-call]
        return observation[[0, 2]], *rest


class CartPoleCrashing(CartPoleEnv):
    """CartPole that fails or stalls in steps and resets, and is started anew after a failure, in any worker.

    A failure cuts the episode, as with RLlib's ``restart_failed_sub_environments``. With ``raises`` it is an exception,
    which costs a worker its process. Steps and seconds are a number, or two between which one is drawn.
    """

    def __init__(self, config: Options | None = None, render_mode: str | None = None, **options: Any) -> None:
        mishaps = (f"{name}_{kind}" for kind in ("after_n_steps", "on_worker_indices") for name in ("crash", "stall"))
        seconds = ("init_time_s", "init_time_s_min", "init_time_s_max", "re_init_time_s", "stall_time_sec")
        names = ("p_crash", "p_crash_reset", "p_stall", "p_stall_reset", *mishaps, *seconds, "raises")
        given = given_options(self, config, options, *names, "skip_env_checking")
        super().__init__(render_mode=render_mode)
        chance = given.get("p_crash", 0.005)
        self._crashes = _Mishaps(chance, given.get("p_crash_reset", chance), given.get("crash_after_n_steps"))
        still = given.get("p_stall", 0.0), given.get("p_stall_reset", 0.0), given.get("stall_after_n_steps")
        self._stalls, self._seconds_of_stall = _Mishaps(*still), given.get("stall_time_sec") or 0
        start = given.get("init_time_s", (given.get("init_time_s_min", 0), given.get("init_time_s_max", 0)))
        self._seconds_of_restart = given.get("re_init_time_s", start)
        self._raises: bool = given.get("raises", False)
        self._dice = np.random.default_rng()  # with a seed, the env of a replaced worker would fail at the same step
        time.sleep(_between(start, self._dice))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if self._crashes.come_in_reset(self._dice):
            self._crash("reset")
        if self._stalls.come_in_reset(self._dice):
            time.sleep(_between(self._seconds_of_stall, self._dice))
        observation, info = super().reset(seed=seed, options=options)
        return observation, info

    def step(self, action: Any) -> Step:
        observation, reward, is_over, is_cut, info = super().step(action)  # type: ignore[no-untyped-call]
        if self._crashes.come_in_step(self._dice):
            self._crash("step")
            is_cut = True
        if self._stalls.come_in_step(self._dice):
            time.sleep(_between(self._seconds_of_stall, self._dice))
        return observation, float(reward), is_over, is_cut, info

    def _crash(self, method: str) -> None:
        if self._raises:
            raise RuntimeError(f"{method} failed, as p_crash of CartPoleCrashing asks for")
        time.sleep(_between(self._seconds_of_restart, self._dice))


class _Mishaps:
    """Decides when something happens to an env: at random, or after a number of steps of an episode."""

    def __init__(self, in_step: float, in_reset: float, after: float | Sequence[float] | None) -> None:
        self._chance, self._chance_in_reset, self._after = in_step, in_reset, after
        self._left: float = 0

    def come_in_reset(self, dice: np.random.Generator) -> bool:
        """Begin an episode; return whether it happens now."""
        self._left = 0 if self._after is None else int(_between(self._after, dice))
        return bool(dice.random() < self._chance_in_reset)

    def come_in_step(self, dice: np.random.Generator) -> bool:
        """Count a step; return whether it happens now."""
        self._left -= 1
        return self._left == 0 or bool(dice.random() < self._chance)


def _between(value: float | Sequence[float], dice: np.random.Generator) -> float:
    """Return a number, or one that is drawn between the two of a pair."""
    if not isinstance(value, Sequence):
        return value
    low, high = value
    return float(dice.uniform(low, high))


_CART, _POLE = 0, 1
"""The joints of PyBullet's cart pole."""


class ContinuousBulletCartPole(gym.Env[Any, Any]):
    """PyBullet's cart pole with a force as its action: an old Gym package has it, and none for Gymnasium.

    Observations are the angle of the pole, its velocity, the place of the cart and its velocity.
    """

    _most_angle, _most_place, _most_force = math.radians(12), 0.4, 10.0

    def __init__(self) -> None:
        unlimited = np.finfo(np.float32).max
        limits = np.array([2 * self._most_angle, unlimited, 2 * self._most_place, unlimited], np.float32)
        self.observation_space = Box(-limits, limits, dtype=np.float32)
        self.action_space = Box(-self._most_force, self._most_force, (1,), np.float32)
        self._state = np.zeros(4)
        _bullet_cart_pole()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-0.05, 0.05, 4)
        return self._state.astype(np.float32), {}

    def step(self, action: Any) -> Step:
        bullet, body = _bullet_cart_pole()
        client = body["physicsClientId"]
        joints = {_POLE: self._state[:2], _CART: self._state[2:]}
        for joint, (place, velocity) in joints.items():
            bullet.resetJointState(jointIndex=joint, targetValue=place, targetVelocity=velocity, **body)
        force = float(np.asarray(action).reshape(-1)[0])
        bullet.setJointMotorControl2(jointIndex=_CART, controlMode=bullet.TORQUE_CONTROL, force=force, **body)
        bullet.stepSimulation(physicsClientId=client)
        self._state = np.array(
            [number for joint in joints for number in bullet.getJointState(jointIndex=joint, **body)[:2]]
        )
        angle, _, place, _ = self._state
        is_over = bool(abs(angle) > self._most_angle or abs(place) > self._most_place)
        return self._state.astype(np.float32), 1.0, is_over, False, {}


@cache
def _bullet_cart_pole() -> tuple[Any, dict[str, int]]:
    """Return PyBullet, and a cart with a pole that all envs of a process share, as each step sets its state."""
    bullet, data = (importlib.import_module(name) for name in ("pybullet", "pybullet_data"))
    client = bullet.connect(bullet.DIRECT)
    cart = bullet.loadURDF(f"{data.getDataPath()}/cartpole.urdf", physicsClientId=client)
    body = {"bodyUniqueId": cart, "physicsClientId": client}
    for link in (-1, _CART, _POLE):
        bullet.changeDynamics(linkIndex=link, linearDamping=0, angularDamping=0, **body)
    for joint in (_CART, _POLE):
        bullet.setJointMotorControl2(jointIndex=joint, controlMode=bullet.VELOCITY_CONTROL, force=0, **body)
    bullet.setGravity(0, 0, -9.8, physicsClientId=client)
    bullet.setTimeStep(0.02, physicsClientId=client)
    return bullet, body


def given_options(env: gym.Env[Any, Any], config: Options | None, options: Options, *names: str) -> dict[str, Any]:
    """Return all options of an env; raises TypeError for one that it does not have."""
    given = {**(config or {}), **options}
    unknown = sorted(given.keys() - set(names))
    if unknown:
        raise TypeError(
            f"{type(env).__name__} has no option {unknown[0]}; its options are {', '.join(names) or 'none'}"
        )
    return given
