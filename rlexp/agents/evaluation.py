"""Evaluation episodes of an agent, under ``evaluation_config``."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.agents.iteration import agent_rewards
from rlexp.agents.policies import Policies
from rlexp.agents.workers import ObservationFilters
from rlexp.config.keys.common_keys import EvaluationConfig
from rlexp.config.keys.metrics import OWN_METRICS
from rlexp.envs.action_masks import like
from rlexp.envs.make import make_filmed_env, make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.errors import TrialError
from rlexp.metrics import summarised
from rlexp.policy import Policy, Weights
from rlexp.rollout.episodes import make_episode_hooks
from rlexp.rollout.evaluation import (
    ActingPolicy,
    EvaluationLimits,
    PlayedEpisodes,
    Playing,
    ReportProgress,
    film_episode,
    ignore_progress,
    play_episodes,
    played_to_end,
)
from rlexp.rollout.user_callbacks import NO_CALLBACKS, UserCallbacks
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed

MAX_ENVS = 8
"""Most envs of an evaluation that step side by side."""
MAX_STEPS = 1_000_000
"""Most steps of an evaluation's vector env."""
MAX_FILM_FRAMES = 10_000
"""Most frames of a video: eleven minutes of an Atari game, which an agent that never moves would fill."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds that envs may take to close."""
DEFAULT_FPS = 30
"""Frames per second of an env without ``render_fps``."""


@dataclass(frozen=True)
class Evaluator:
    """Plays and films episodes with the policies of an agent; makes new envs each time."""

    training_env: EnvConfig
    policies: Policies[Any]
    policy: Policy
    """A policy of ``policies``, with the weights to evaluate."""
    filters: ObservationFilters
    callbacks: UserCallbacks = NO_CALLBACKS
    """The callbacks whose hooks are called for the episodes."""

    def play(
        self, num_episodes: int, seed: int, limits: EvaluationLimits, report: ReportProgress = ignore_progress
    ) -> PlayedEpisodes:
        """Return whole episodes, ``num_episodes`` of them unless ``limits`` end them."""
        return played_to_end(self.playing(num_episodes, seed, limits), report)

    def playing(self, num_episodes: int, seed: int, limits: EvaluationLimits) -> Playing:
        """Play the same episodes in parts; the envs are closed with the iterator.

        Raises TrialError if their ``close`` does not return within CLOSE_TIMEOUT_S.
        """
        env = make_vector_env(self.env_config, min(num_episodes, MAX_ENVS))
        try:
            hooks = make_episode_hooks(self.callbacks, env, worker_index=None)
            player = self._player(env.num_envs, seed)
            return (yield from play_episodes(player, env, num_episodes, seed, limits, hooks))
        finally:
            _close(env)

    def film(self, seed: int) -> tuple[Iterator[Array], float]:
        """Return a generator of the pictures ``[H, W, 3]`` of an episode, and their number per second.

        The episode is played while pictures are taken, as all pictures of a long episode would be gigabytes. The env is
        closed with the generator. Raises UsageError if the env cannot be filmed.
        """
        env = make_filmed_env(self.env_config)
        player = self._player(env.num_envs, seed)

        def pictures() -> Iterator[Array]:
            try:
                yield from film_episode(player, env, seed, MAX_FILM_FRAMES)
            finally:
                env.close()

        return pictures(), float(env.metadata.get("render_fps") or DEFAULT_FPS)

    @property
    def env_config(self) -> EnvConfig:
        """The config of the evaluation's env."""
        env = evaluation_env(self.training_env, self.policies.config.evaluation_config)
        return like(env, self.policies.observation_space)

    def _player(self, num_envs: int, seed: int) -> ActingPolicy:
        explores = self.policies.config.evaluation_config.explore
        player = self.policies.exploring_player(self.policy, num_envs, seed) if explores else self.policy
        return self.filters.applied_to(player)


def evaluator_of(
    policies: Policies[Any],
    training_env: EnvConfig,
    weights: Weights,
    filters: ObservationFilters,
    callbacks: UserCallbacks = NO_CALLBACKS,
) -> Evaluator:
    """Return the evaluator of ``weights``."""
    policy = policies.make_policy()
    policy.set_weights(weights)
    return Evaluator(training_env, policies, policy, filters, callbacks)


def _close(env: VectorEnv[Any, Any, Any]) -> None:
    """Close envs in a thread, which is abandoned if it hangs, so that the trial continues."""
    closed: Future[None] = Future()

    def close() -> None:
        try:
            env.close()
        except Exception as error:
            closed.set_exception(error)
        else:
            closed.set_result(None)

    threading.Thread(target=close, name="close", daemon=True).start()
    if not wait([closed], CLOSE_TIMEOUT_S).done:
        message = f"env.close has not returned for {CLOSE_TIMEOUT_S:g} s"
        raise TrialError(message, "close what the env has opened without waiting for it")
    closed.result()


def evaluation_env(training_env: EnvConfig, config: EvaluationConfig) -> EnvConfig:
    """Return the config of an evaluation's env: the training's, with the changes of ``evaluation_config``."""
    env_config = {**training_env.env_config, **config.env_config}
    return replace(training_env, env_config=env_config, horizon=config.horizon or training_env.horizon)


def evaluation_seed(seed: int, iteration: int) -> int:
    """Return the seed of the evaluation episodes of a trial with ``seed`` after an iteration."""
    return derive_seed(seed, "evaluation", iteration)


def evaluation_figures(played: PlayedEpisodes) -> dict[str, Any]:
    """Return the stats under ``evaluation`` in a row of results; NaN if no episode has ended."""
    returns, lengths = played.returns, played.lengths
    if not len(returns):
        returns = lengths = np.array([math.nan])
    own = summarised(played.own_metrics)
    return {
        "episode_reward_mean": float(returns.mean()),
        "episode_reward_min": float(returns.min()),
        "episode_reward_max": float(returns.max()),
        "episode_len_mean": float(lengths.mean()),
        "episodes_this_iter": len(played.returns),
        **agent_rewards(summarised(played.of_agents)),
        **({OWN_METRICS: own} if own else {}),
    }
