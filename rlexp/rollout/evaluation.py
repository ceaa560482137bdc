"""Plays whole episodes greedily, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.rollout.episodes import EpisodeCounter
from rlexp.rollout.exploration import EpsilonGreedy
from rlexp.sample_batch import Array


class Acting(Protocol):
    """What an evaluation needs of a policy."""

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[B]`` for observations ``obs [B, ...]``."""
        ...


class ExploringPolicy:
    """A policy that takes a random action with probability ε: for evaluations that explore."""

    def __init__(self, policy: Acting, epsilons: Array, num_actions: int, rng: np.random.Generator) -> None:
        """Explore in as many envs as there are ``epsilons [M]``."""
        self._policy = policy
        self._epsilons = epsilons
        self._explore = EpsilonGreedy(len(epsilons), num_actions, rng)

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[M]``."""
        return self._explore(self._policy.compute_actions(obs), self._epsilons)


def film_episode(policy: Acting, env: VectorEnv[Any, Any, Any], seed: int, max_frames: int) -> Iterator[Array]:
    """Yield the pictures ``[H, W, 3]`` of one episode of an env that renders; at most ``max_frames`` of them.

    An episode is a whole one, as it is reported: of an Atari game, all lives.
    """
    episodes = EpisodeCounter(1)
    obs, _ = env.reset(seed=seed)
    yield _picture(env)
    for _ in range(max_frames - 1):
        obs, rewards, terminated, truncated, infos = env.step(policy.compute_actions(obs))
        yield _picture(env)
        if episodes.add(rewards, terminated | truncated, infos) is not None:
            break


def _picture(env: VectorEnv[Any, Any, Any]) -> Array:
    rendered = env.render()
    assert rendered is not None
    picture: Array = np.asarray(rendered[0])
    return picture


def play_episodes(
    policy: Acting, env: VectorEnv[Any, Any, Any], num_episodes: int, seed: int, max_steps: int
) -> tuple[Array, Array]:
    """Return the returns ``[num_episodes]`` and lengths of greedy episodes.

    Each of the M envs plays its fixed share of the episodes: taking the first ones to finish instead
    would favour the short ones. Raises TimeoutError after ``max_steps`` steps of the vector env.
    """
    num_envs = env.num_envs
    missing = np.array([len(range(i, num_episodes, num_envs)) for i in range(num_envs)])
    episodes = EpisodeCounter(num_envs)
    returns: list[float] = []
    lengths: list[int] = []
    obs, _ = env.reset(seed=seed)
    for _ in range(max_steps):
        obs, rewards, terminated, truncated, infos = env.step(policy.compute_actions(obs))
        finished = episodes.add(rewards, terminated | truncated, infos)
        if finished is None:
            continue
        counted = missing[finished.envs] > 0
        returns += finished.returns[counted].tolist()
        lengths += finished.lengths[counted].tolist()
        missing[finished.envs[counted]] -= 1
        if not missing.any():
            return np.array(returns), np.array(lengths)
    raise TimeoutError(f"{len(returns)} of {num_episodes} episodes ended within {max_steps} steps of {num_envs} envs")
