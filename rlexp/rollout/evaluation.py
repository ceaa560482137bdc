"""Plays whole episodes for evaluation, within limits of steps and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.rollout.episodes import EpisodeCounter
from rlexp.sample_batch import Array

ShouldStop = Callable[[], bool]
"""Returns whether the evaluation must end."""
ReportProgress = Callable[[int, int], None]
"""Is called with the episodes that have ended and the env steps taken, about once a second."""
REPORT_PERIOD_S = 1.0


class ActingPolicy(Protocol):
    """What an evaluation needs of a policy."""

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[B]`` for observations ``obs [B, ...]``."""
        ...


def film_episode(policy: ActingPolicy, env: VectorEnv[Any, Any, Any], seed: int, max_frames: int) -> Iterator[Array]:
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


def never() -> bool:
    """Return False: nothing ends it early."""
    return False


@dataclass(frozen=True)
class EvaluationLimits:
    """When an evaluation ends although episodes are missing: an env may have no end of its own."""

    max_steps: int
    """Steps of the vector env."""
    timeout_s: float | None
    """Seconds; None: no limit."""
    should_stop: ShouldStop = never
    """Is called before every step."""


@dataclass(frozen=True)
class PlayedEpisodes:
    """The whole episodes of an evaluation."""

    returns: Array
    """Undiscounted returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    num_wanted: int
    num_env_steps: int
    """Of all envs together, those of unfinished episodes too."""
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether as many episodes have ended as were wanted."""
        return len(self.returns) == self.num_wanted

    def __str__(self) -> str:
        """Return how far it came, for a sentence."""
        ended = f"{len(self.returns)} of {self.num_wanted} evaluation episodes ended"
        return f"{ended} within {self.seconds:.0f} s, {self.num_env_steps:,} env steps"


def ignore_progress(num_ended: int, num_env_steps: int) -> None:
    """Do nothing with a report."""


def play_episodes(
    policy: ActingPolicy,
    env: VectorEnv[Any, Any, Any],
    num_episodes: int,
    seed: int,
    limits: EvaluationLimits,
    report: ReportProgress = ignore_progress,
) -> PlayedEpisodes:
    """Play whole episodes, fewer than ``num_episodes`` where ``limits`` end them.

    Each of the M envs plays its fixed share of the episodes: taking the first ones to finish instead
    would favour the short ones.
    """
    share = _Shares(num_episodes, env.num_envs)
    started = reported = now = time.monotonic()
    obs, _ = env.reset(seed=seed)
    steps = 0
    while not share.is_complete and steps < limits.max_steps:
        if limits.should_stop() or (limits.timeout_s is not None and now - started >= limits.timeout_s):
            break
        obs, rewards, terminated, truncated, infos = env.step(policy.compute_actions(obs))
        steps += 1
        share.add(rewards, terminated | truncated, infos)
        now = time.monotonic()
        if now - reported >= REPORT_PERIOD_S:
            reported = now
            report(len(share.returns), steps * env.num_envs)
    returns, lengths = np.array(share.returns), np.array(share.lengths, np.int64)
    return PlayedEpisodes(returns, lengths, num_episodes, steps * env.num_envs, now - started)


class _Shares:
    """Counts the episodes of each env up to its share."""

    def __init__(self, num_episodes: int, num_envs: int) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self._missing = np.array([len(range(env, num_episodes, num_envs)) for env in range(num_envs)])
        self._episodes = EpisodeCounter(num_envs)

    @property
    def is_complete(self) -> bool:
        """Whether every env has played its share."""
        return not self._missing.any()

    def add(self, rewards: Array, ended: Array, infos: Mapping[str, Any]) -> None:
        """Count one step of every env; the arguments are those of ``EpisodeCounter.add``."""
        finished = self._episodes.add(rewards, ended, infos)
        if finished is None:
            return
        counted = self._missing[finished.envs] > 0
        self.returns += finished.returns[counted].tolist()
        self.lengths += finished.lengths[counted].tolist()
        self._missing[finished.envs[counted]] -= 1
