"""Atari games as in Mnih et al. 2015: no-op starts, the maximum of two frames, a life as an episode, fire to begin.

Every agent and every way of playing (training, evaluation, videos) goes through these wrappers, one env
each. The vectorised env of ale-py would step a game 1.3 to 1.6 times as fast, but neither renders nor plays
the ids without ``ALE/``, and beside the network that acts the difference is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TimeLimit

from rlexp.envs.env_config import FrameConfig
from rlexp.envs.frames import ScaledFrames, StackedFrames
from rlexp.errors import UsageError

Env = gym.Env[Any, Any]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]
Start = tuple[Any, dict[str, Any]]
Options = dict[str, Any] | None

NOOP = 0
MAX_NOOPS = 30
"""Frames at most that a game runs before the agent plays, so that games begin differently."""
FRAME_SKIP = 4
"""Frames that an action lasts, where the env's id does not say so itself."""

GAME_OVER = "game_over"
"""In the info of every step and reset: whether a whole game is over, not only a life."""
GAME_SCORE = "game_score"
"""Then: the sum of its rewards, unclipped, over all lives; else 0."""
GAME_STEPS = "game_steps"
"""Then: the steps it lasted; else 0."""


def deepmind_env(env: Env, frames: FrameConfig, horizon: int | None) -> Env:
    """Return ``env``, an Atari game with grey frames ``[H, W]``, as the DQN of Mnih et al. saw it.

    Observations are bytes ``[dim, dim, 4]``, or ``[dim, dim, 1]`` without ``framestack``. An episode is a
    life; a game is cut after ``horizon`` steps. Raises UsageError where actions are continuous.
    """
    if not isinstance(env.action_space, Discrete):
        message = "Atari games with continuous actions cannot be prepared as preprocessor_pref: deepmind says"
        raise UsageError(message, "preprocessor_pref: null")
    env = NoopStarts(env)
    if env.spec is not None and env.spec.kwargs.get("frameskip") == 1:
        env = SkippedFrames(env)
    scores = GameScores(env if horizon is None else TimeLimit(env, horizon))
    env = LifeEpisodes(scores)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    if "FIRE" in meanings:
        env = FireStarts(env, meanings.index("FIRE"))
    env = ScaledFrames(env, frames.dim, grayscale=True)
    return ReportedGames(StackedFrames(env) if frames.framestack else env, scores)


class NoopStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Lets each game run for 1 to MAX_NOOPS frames (steps, where the env skips frames itself) before it is played."""

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        start = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.np_random.integers(1, MAX_NOOPS + 1))):
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            start = self.env.reset() if terminated or truncated else (obs, info)
        return start


class SkippedFrames(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats an action for FRAME_SKIP frames and shows the maximum of the last two: some sprites flicker."""

    def step(self, action: Any) -> Step:
        obs, total, terminated, truncated, info = self.env.step(action)
        before = obs
        for _ in range(FRAME_SKIP - 1):
            if terminated or truncated:
                break
            before = obs
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = float(total) + float(reward)
        return np.maximum(before, obs), total, terminated, truncated, info


@dataclass(frozen=True)
class Game:
    """A whole game that is over."""

    score: float
    steps: int


class GameScores(gym.Wrapper[Any, Any, Any, Any]):
    """Adds up each game's rewards, below the wrappers that cut it into lives or step it when it starts."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._finished: Game | None = None
        self._score, self._steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        self._score, self._steps = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._score += float(reward)
        self._steps += 1
        if terminated or truncated:
            self._finished = Game(self._score, self._steps)
        return obs, reward, terminated, truncated, info

    def take_finished(self) -> Game | None:
        """Return the game that ended since the last call, if one did."""
        game, self._finished = self._finished, None
        return game


class LifeEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the next one goes on with the same game, after a no-op."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._game_over = True

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        if not self._game_over and seed is None:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            self._game_over = terminated or truncated
        if self._game_over or seed is not None:
            obs, info = self.env.reset(seed=seed, options=options)
            self._game_over = False
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._game_over = terminated or truncated
        # Some games show 0 lives for a moment before they are over.
        lost_a_life = 0 < info["lives"] < self._lives
        self._lives = info["lives"]
        return obs, reward, terminated or lost_a_life, truncated, info


class FireStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE, and the action after it, where an episode would not begin without."""

    def __init__(self, env: Env, fire: int) -> None:
        super().__init__(env)
        self._fire = fire

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        start = self.env.reset(seed=seed, options=options)
        for action in (self._fire, self._fire + 1):
            obs, _, terminated, truncated, info = self.env.step(action)
            start = self.env.reset() if terminated or truncated else (obs, info)
        return start


class ReportedGames(gym.Wrapper[Any, Any, Any, Any]):
    """Says in every info whether a game is over, and how it went; also of one that ended while the next started."""

    def __init__(self, env: Env, scores: GameScores) -> None:
        super().__init__(env)
        self._scores = scores

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, info | self._report()

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info | self._report()

    def _report(self) -> dict[str, Any]:
        game = self._scores.take_finished()
        ended = game or Game(0.0, 0)
        return {GAME_OVER: game is not None, GAME_SCORE: ended.score, GAME_STEPS: ended.steps}
