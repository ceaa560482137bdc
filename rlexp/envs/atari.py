"""Atari games as in Mnih et al. 2015: no-op starts, the maximum of two frames, a life as an episode, fire to begin.

These wrappers of single envs define the rules of Atari games. If ale-py's vectorised env can compute the same,
:mod:`rlexp.envs.native_vectors` uses that instead. The wrappers play all other games, and all videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TimeLimit

from rlexp.envs.registry import FrameConfig
from rlexp.envs.wrappers import ScaledFrames, StackedFrames
from rlexp.errors import UsageError

MAX_NOOPS = 30
"""Most frames that a game runs before the agent plays, so that games begin differently."""
FRAME_SKIP = 4
"""Frames that an action lasts, if the env's id does not set it."""
FRAMES_PER_SECOND = 60
"""Frames per second of the console."""

GAME_OVER = "game_over"
"""Key in the info of every step and reset: whether a whole game is over, not only a life."""
GAME_SCORE = "game_score"
"""Key of a game's score at its end: the sum of unclipped rewards over all lives; else 0."""
GAME_STEPS = "game_steps"
"""Key of a game's steps at its end; else 0."""
Env = gym.Env[Any, Any]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]
Start = tuple[Any, dict[str, Any]]
Options = dict[str, Any] | None
NOOP = 0


@dataclass(frozen=True)
class AtariRules:
    """How an Atari game is played under ``preprocessor_pref: deepmind``."""

    skip: int | None
    """Frames that an action lasts, the last two of which are shown; None: the env itself skips a random number."""
    max_steps: int | None
    """Steps after which a game is truncated; None: never."""
    env_arguments: Mapping[str, Any]
    """Arguments of ale-py's env, which shows every frame unless ``skip`` is None, and never truncates a game."""


def atari_rules(id_arguments: Mapping[str, Any], env_config: Mapping[str, Any], horizon: int | None) -> AtariRules:
    """Return the rules of a game whose id has ``id_arguments``, truncated after ``horizon`` steps if not before.

    >>> atari_rules({"frameskip": 1}, {}, None).skip, atari_rules({"frameskip": 3}, {}, None).skip
    (4, 3)
    """
    arguments = {**id_arguments, **env_config, "obs_type": "grayscale"}
    skip = arguments.get("frameskip", FRAME_SKIP)
    if not isinstance(skip, int):
        return AtariRules(None, horizon, arguments)
    skip = FRAME_SKIP if skip == 1 else skip
    max_frames = arguments.get("max_num_frames_per_episode") or None
    limits = [limit for limit in (horizon, max_frames and -(-max_frames // skip)) if limit is not None]
    arguments |= {"frameskip": 1, "max_num_frames_per_episode": 0}
    return AtariRules(skip, min(limits, default=None), arguments)


def steps_per_second(frameskip: int | tuple[int, int]) -> float:
    """Return the steps per second of play, for steps of ``frameskip`` frames or of a random number from [low, high)."""
    frames = frameskip if isinstance(frameskip, int) else (frameskip[0] + frameskip[1] - 1) / 2
    return FRAMES_PER_SECOND / frames


def _as_it_is(env: Env) -> Env:
    return env


def deepmind_env(env: Env, frames: FrameConfig, rules: AtariRules, wrap: Callable[[Env], Env] = _as_it_is) -> Env:
    """Return ``env``, an Atari game with grey frames ``[H, W]``, as the DQN of Mnih et al. saw it.

    Observations are bytes ``[dim, dim, 4]``, or ``[dim, dim, 1]`` without ``framestack``. An episode is a life; a game
    is truncated after ``rules.max_steps``. ``wrap`` puts the user's own wrappers around all of this except the report
    on games. Raises UsageError if actions are continuous.
    """
    if not isinstance(env.action_space, Discrete):
        message = "Atari games with continuous actions cannot use preprocessor_pref: deepmind"
        raise UsageError(message, "preprocessor_pref: null")
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    fire = meanings.index("FIRE") if "FIRE" in meanings else None
    env = NoopStarts(env, fire)
    if rules.skip is not None:
        env = SkippedFrames(env, rules.skip)
    scores = GameScores(env if rules.max_steps is None else TimeLimit(env, rules.max_steps))
    env = LifeEpisodes(scores, NOOP if fire is None else fire)
    env = ScaledFrames(env, (frames.atari_dim, frames.atari_dim), grayscale=True)
    return ReportedGames(wrap(StackedFrames(env) if frames.framestack else env), scores)


class NoopStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Lets a game run for up to MAX_NOOPS frames (steps, if the env skips frames itself) before it is played.

    The first of them presses the fire button if there is one, as some games do not begin without.
    """

    def __init__(self, env: Env, fire: int | None) -> None:
        super().__init__(env)
        self._fire = fire

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        start = self.env.reset(seed=seed, options=options)
        for frame in range(self._num_frames()):
            action = NOOP if self._fire is None or frame else self._fire
            obs, _, terminated, truncated, info = self.env.step(action)
            start = self.env.reset() if terminated or truncated else (obs, info)
        return start

    def _num_frames(self) -> int:
        return int(self.np_random.integers(0 if self._fire is None else 1, MAX_NOOPS + 1))


class SkippedFrames(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats an action for ``skip`` frames and shows the maximum of the last two: some sprites flicker."""

    def __init__(self, env: Env, skip: int) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> Step:
        obs, total, terminated, truncated, info = self.env.step(action)
        before = obs
        for _ in range(self._skip - 1):
            if terminated or truncated:
                break
            before = obs
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = float(total) + float(reward)
        return np.maximum(before, obs), total, terminated, truncated, info


@dataclass(frozen=True)
class Game:
    """The result of a whole game that is over."""

    score: float
    steps: int


class GameScores(gym.Wrapper[Any, Any, Any, Any]):
    """Adds up each game's rewards, below the wrappers that split it into lives or play its start."""

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
    """Ends an episode with each life; the next one continues the same game, after one step of ``first_action``.

    ``first_action`` fires if there is a button for it, as some games wait for it after each life.
    """

    def __init__(self, env: Env, first_action: int) -> None:
        super().__init__(env)
        self._first_action = first_action
        self._lives = 0
        self._game_over = True

    def reset(self, *, seed: int | None = None, options: Options = None) -> Start:
        if not self._game_over and seed is None:
            obs, _, terminated, truncated, info = self.env.step(self._first_action)
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


class ReportedGames(gym.Wrapper[Any, Any, Any, Any]):
    """Reports in every info whether a game is over, and its result; also of one that ended while the next started."""

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
