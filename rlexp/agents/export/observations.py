"""The observations that an exported policy is checked on: those of its own episodes, and any that its env may give."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.envs import EnvConfig, make_vector_env
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.sample_batch import Array

LARGEST_DRAWN: Final = 1e3
"""How far from 0: bounds may be those of the number type, and float32 networks overflow with such numbers."""
_NUM_ENVS: Final = 4


def played_observations(policy: ActingPolicy, config: EnvConfig, number: int, seed: int) -> Array:
    """Return observations ``[number, ...]`` of episodes that ``policy`` plays."""
    env = make_vector_env(config, _NUM_ENVS)
    try:
        obs, _ = env.reset(seed=seed)
        steps = [np.array(obs)]
        while len(steps) * _NUM_ENVS < number:
            obs, *_ = env.step(policy.compute_actions(obs))
            steps.append(np.array(obs))
    finally:
        env.close()
    return np.concatenate(steps)[:number]


def drawn_observations(space: gym.Space[Any], number: int, seed: int) -> Array:
    """Return observations ``[number, ...]`` that are drawn from ``space``, which agents see and is a Box."""
    assert isinstance(space, gym.spaces.Box)
    low, high = _narrowed(space) if np.issubdtype(space.dtype, np.floating) else (space.low, space.high)
    own = gym.spaces.Box(low, high, dtype=space.dtype.type, seed=seed)  # draws from ``space`` go on as they would
    return np.stack([own.sample() for _ in range(number)])


def _narrowed(space: gym.spaces.Box) -> tuple[Array, Array]:
    """Return bounds that are at most LARGEST_DRAWN from the number nearest to 0; infinite ones stay as they are."""
    nearest = np.clip(np.zeros_like(space.low), space.low, space.high)
    low = np.where(np.isinf(space.low), space.low, np.maximum(space.low, nearest - LARGEST_DRAWN))
    high = np.where(np.isinf(space.high), space.high, np.minimum(space.high, nearest + LARGEST_DRAWN))
    return low.astype(space.dtype), high.astype(space.dtype)
