"""Plays whole episodes for evaluation, within limits of steps and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.envs.parallel_envs import agents_of, agents_per_env
from rlexp.policy import HasMemory
from rlexp.rollout.episodes import EpisodeCounter, EpisodeHooks, Finished, VectorStep, join_metrics
from rlexp.sample_batch import Array

ShouldStop = Callable[[], bool]
"""Returns whether the evaluation must end."""
ReportProgress = Callable[[int, int], None]
"""A function that is called about once a second with the number of ended episodes and env steps."""
REPORT_PERIOD_S = 1.0


class ActingPolicy(Protocol):
    """What an evaluation needs of a policy; one that HasMemory is told of the steps too."""

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[B]`` for observations ``obs [B, ...]``."""


class WrappedPolicy:
    """An ActingPolicy that changes what another one sees or does, and tells it of steps if that one HasMemory."""

    def __init__(self, policy: ActingPolicy) -> None:
        self._memory = policy if isinstance(policy, HasMemory) else None

    def start_episodes(self, num_envs: int) -> None:
        """Let the policy forget all."""
        if self._memory is not None:
            self._memory.start_episodes(num_envs)

    def after_step(self, rewards: Array, starting: Array) -> None:
        """Let the policy remember a step."""
        if self._memory is not None:
            self._memory.after_step(rewards, starting)


def film_episode(policy: ActingPolicy, env: VectorEnv[Any, Any, Any], seed: int, max_frames: int) -> Iterator[Array]:
    """Yield the pictures ``[H, W, 3]`` of one episode, at most ``max_frames`` of them. The env must render.

    The episode is a whole one, as it is reported: in Atari, a game with all its lives.
    """
    episodes = EpisodeCounter(env.num_envs)
    obs, _ = env.reset(seed=seed)
    memory = memory_of(policy, env.num_envs)
    yield _picture(env)
    for _ in range(max_frames - 1):
        obs, rewards, terminated, truncated, infos = env.step(policy.compute_actions(obs))
        if memory is not None:
            memory.after_step(rewards, episodes.resetting)
        yield _picture(env)
        if episodes.add(rewards, terminated | truncated, infos) is not None:
            break


def memory_of(policy: ActingPolicy, num_envs: int) -> HasMemory | None:
    """Return ``policy`` if it HasMemory, after it has forgotten all; None if it has none."""
    if not isinstance(policy, HasMemory):
        return None
    policy.start_episodes(num_envs)
    return policy


def _picture(env: VectorEnv[Any, Any, Any]) -> Array:
    rendered = env.render()
    assert rendered is not None
    picture: Array = np.asarray(rendered[0])
    return picture


def never() -> bool:
    """Return False: no condition ends the evaluation early."""
    return False


@dataclass(frozen=True)
class EvaluationLimits:
    """Limits that end an evaluation although episodes are missing, as an env's episodes may never end."""

    max_steps: int
    """Most steps of the vector env."""
    timeout_s: float | None
    """Most seconds; None: no limit."""
    should_stop: ShouldStop = never
    """A function that is called before every step."""


@dataclass(frozen=True)
class PlayedEpisodes:
    """The whole episodes of an evaluation."""

    returns: Array
    """Undiscounted returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    num_wanted: int
    num_env_steps: int
    """Env steps of all envs together, with the steps of unfinished episodes."""
    seconds: float
    own_metrics: Mapping[str, Array] = field(default_factory=dict)
    """The user's own metrics of the episodes, by name; only episodes that have a metric give a value."""
    of_agents: Mapping[str, Array] = field(default_factory=dict)
    """The returns of each agent by its name, if the env has several."""

    @property
    def is_complete(self) -> bool:
        """Whether all wanted episodes have ended."""
        return len(self.returns) == self.num_wanted

    def __str__(self) -> str:
        """Return the progress as text for a sentence."""
        ended = f"{len(self.returns)} of {self.num_wanted} evaluation episodes ended"
        return f"{ended} within {self.seconds:.0f} s, {self.num_env_steps:,} env steps"


def ignore_progress(num_ended: int, num_env_steps: int) -> None:
    """Ignore a progress report."""


Playing = Generator[tuple[int, int], None, PlayedEpisodes]
"""A generator that plays an evaluation up to the next progress report at each call; it returns the episodes."""


def played_to_end(playing: Playing, report: ReportProgress = ignore_progress) -> PlayedEpisodes:
    """Play an evaluation to its end and return its episodes."""
    with closing(playing):
        while True:
            try:
                progress = next(playing)
            except StopIteration as end:
                episodes: PlayedEpisodes = end.value
                return episodes
            report(*progress)


def play_episodes(
    policy: ActingPolicy,
    env: VectorEnv[Any, Any, Any],
    num_episodes: int,
    seed: int,
    limits: EvaluationLimits,
    hooks: EpisodeHooks | None = None,
) -> Playing:
    """Play whole episodes; fewer than ``num_episodes`` if ``limits`` end the evaluation.

    Each of the M envs plays a fixed share of the episodes. Taking the first ones to finish would favour short episodes.
    ``hooks`` calls the user's hooks for the episodes that count.
    """
    num_agents = agents_per_env(env)
    share = _Shares(num_episodes, env, hooks)
    started = reported = now = time.monotonic()
    obs, infos = env.reset(seed=seed)
    share.begin(obs, infos)
    memory = memory_of(policy, env.num_envs)
    steps = 0
    while not share.is_complete and steps < limits.max_steps:
        if limits.should_stop() or (limits.timeout_s is not None and now - started >= limits.timeout_s):
            break
        actions = policy.compute_actions(obs)
        obs, rewards, terminated, truncated, infos = env.step(actions)
        steps += 1
        if memory is not None:
            memory.after_step(rewards, share.resetting)
        share.add(VectorStep(share.resetting, obs, actions, rewards, terminated, truncated, infos))
        now = time.monotonic()
        if now - reported >= REPORT_PERIOD_S:
            reported = now
            yield len(share.returns), steps * env.num_envs // num_agents
    returns, lengths = np.array(share.returns), np.array(share.lengths, np.int64)
    num_env_steps, seconds = steps * env.num_envs // num_agents, now - started
    parts = share.own_metrics(), join_metrics(share.of_agents)
    return PlayedEpisodes(returns, lengths, num_episodes, num_env_steps, seconds, *parts)


class _Shares:
    """Counts the episodes of each env up to its share, and passes those episodes to ``hooks``."""

    def __init__(self, num_episodes: int, env: VectorEnv[Any, Any, Any], hooks: EpisodeHooks | None) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.of_agents: list[dict[str, Array]] = []
        self._agents, self._num_agents = agents_of(env), agents_per_env(env)
        self._missing, num_envs = np.zeros(env.num_envs, np.int64), env.num_envs // self._num_agents
        # Of several agents, the first one's row reports the episode of all.
        self._missing[:: self._num_agents] = [len(range(env, num_episodes, num_envs)) for env in range(num_envs)]
        self._episodes = EpisodeCounter(env.num_envs)
        self._hooks = hooks

    @property
    def is_complete(self) -> bool:
        """Whether every env has played its share."""
        return not self._missing.any()

    @property
    def resetting(self) -> Array:
        """Whether the next step of each env is a reset and not an env step ``[M]``."""
        return self._episodes.resetting

    def begin(self, obs: Array, infos: Mapping[str, Any]) -> None:
        """Begin with the result of the first reset of all envs."""
        self._episodes.begin(infos)
        if self._hooks is not None:
            self._hooks.playing = self._playing()
            self._hooks.note_first_reset(obs, infos)
            self._hooks.begin()

    def add(self, step: VectorStep) -> None:
        """Count one step of every env."""
        finished = self._episodes.add(step.rewards, step.terminated | step.truncated, step.infos)
        if finished is not None:
            self._count(finished)
        if self._hooks is not None:
            self._hooks.playing = self._playing()
            self._hooks.after_step(step, finished)

    def own_metrics(self) -> dict[str, Array]:
        """Return the user's own metrics of the episodes, by name."""
        return {} if self._hooks is None else self._hooks.drain_metrics()

    def _playing(self) -> Array:
        return np.repeat(self._missing[:: self._num_agents] > 0, self._num_agents)

    def _count(self, finished: Finished) -> None:
        counted = self._missing[finished.envs] > 0
        self.of_agents.append(finished.returns_by_agent(self._agents, counted))
        self.returns += finished.returns[counted].tolist()
        self.lengths += finished.lengths[counted].tolist()
        self._missing[finished.envs[counted]] -= 1
