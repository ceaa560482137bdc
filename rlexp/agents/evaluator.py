"""Evaluation episodes of an agent, as ``evaluation_config`` has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.config.keys.common import EvaluationConfig
from rlexp.envs import EnvConfig, make_filmed_env, make_vector_env
from rlexp.rollout.evaluation import (
    ActingPolicy,
    EvaluationLimits,
    ExploringPolicy,
    PlayedEpisodes,
    ReportProgress,
    film_episode,
    ignore_progress,
    play_episodes,
)
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed

MAX_ENVS = 8
"""Envs of an evaluation that step side by side, at most."""
MAX_STEPS = 1_000_000
"""Bound of an evaluation, in steps of its vector env."""
MAX_FILM_FRAMES = 10_000
"""Frames of a video, at most: eleven minutes of an Atari game, which an agent that waits for ever would fill."""
DEFAULT_FPS = 30
"""Frames a second of an env that does not say."""


@dataclass(frozen=True)
class Evaluator:
    """Plays and films episodes with the policies that an agent gives it; makes envs of its own each time."""

    training_env: EnvConfig
    config: EvaluationConfig
    action_space: gym.Space[Any]
    epsilon: float
    """ε of the episodes, where they explore."""

    def play(
        self,
        policy: ActingPolicy,
        num_episodes: int,
        seed: int,
        limits: EvaluationLimits,
        report: ReportProgress = ignore_progress,
    ) -> PlayedEpisodes:
        """Return whole episodes, ``num_episodes`` of them unless ``limits`` end them."""
        env = make_vector_env(self.env_config, min(num_episodes, MAX_ENVS))
        try:
            acting = self._acting(policy, env.num_envs, seed)
            return play_episodes(acting, env, num_episodes, seed, limits, report)
        finally:
            env.close()

    def film(self, policy: ActingPolicy, seed: int) -> tuple[Iterator[Array], float]:
        """Return the pictures ``[H, W, 3]`` of an episode that ``policy`` plays, and how many make a second.

        It is played while they are taken, in an env that is closed with the iterator: all pictures of a long
        episode would be gigabytes. Raises UsageError where the env cannot be filmed.
        """
        env = make_filmed_env(self.env_config)
        acting = self._acting(policy, 1, seed)

        def pictures() -> Iterator[Array]:
            try:
                yield from film_episode(acting, env, seed, MAX_FILM_FRAMES)
            finally:
                env.close()

        return pictures(), float(env.metadata.get("render_fps") or DEFAULT_FPS)

    @property
    def env_config(self) -> EnvConfig:
        """How the env of the evaluation is made: as the training's, with what ``evaluation_config`` changes."""
        env_config = {**self.training_env.env_config, **self.config.env_config}
        horizon = self.config.horizon or self.training_env.horizon
        return replace(self.training_env, env_config=env_config, horizon=horizon)

    def _acting(self, policy: ActingPolicy, num_envs: int, seed: int) -> ActingPolicy:
        if not self.config.explore:
            return policy
        assert isinstance(self.action_space, gym.spaces.Discrete)
        epsilons = np.full(num_envs, self.epsilon)
        return ExploringPolicy(policy, epsilons, int(self.action_space.n), np.random.default_rng(seed))


def evaluation_seed(seed: int, iteration: int) -> int:
    """Return the seed of the episodes by which a trial with ``seed`` is evaluated after an iteration."""
    return derive_seed(seed, "evaluation", iteration)


def evaluation_figures(played: PlayedEpisodes) -> dict[str, Any]:
    """Return what a row of results says under ``evaluation``; NaN where no episode has ended."""
    returns, lengths = played.returns, played.lengths
    if not len(returns):
        returns = lengths = np.array([math.nan])
    return {
        "episode_reward_mean": float(returns.mean()),
        "episode_reward_min": float(returns.min()),
        "episode_reward_max": float(returns.max()),
        "episode_len_mean": float(lengths.mean()),
        "episodes_this_iter": len(played.returns),
    }
