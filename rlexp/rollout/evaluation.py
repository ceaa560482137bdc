"""Plays whole episodes greedily, for evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.policy import Policy
from rlexp.sample_batch import Array


def play_episodes(
    policy: Policy, env: VectorEnv[Any, Any, Any], num_episodes: int, seed: int, max_steps: int
) -> tuple[Array, Array]:
    """Return the returns ``[num_episodes]`` and lengths of greedy episodes.

    Each of the M envs plays its fixed share of the episodes: taking the first ones to finish instead
    would favour the short ones. Raises TimeoutError after ``max_steps`` steps of the vector env.
    """
    num_envs = env.num_envs
    missing = np.array([len(range(i, num_episodes, num_envs)) for i in range(num_envs)])
    running_returns, running_lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    resetting = np.zeros(num_envs, bool)
    obs, _ = env.reset(seed=seed)
    for _ in range(max_steps):
        obs, rewards, terminated, truncated, _ = env.step(policy.compute_actions(obs))
        running_returns += rewards
        running_lengths += ~resetting
        resetting = terminated | truncated
        counted = resetting & (missing > 0)
        returns += running_returns[counted].tolist()
        lengths += running_lengths[counted].tolist()
        missing -= counted
        running_returns[resetting] = 0.0
        running_lengths[resetting] = 0
        if not missing.any():
            return np.array(returns), np.array(lengths)
    raise TimeoutError(f"{len(returns)} of {num_episodes} episodes ended within {max_steps} steps of {num_envs} envs")
