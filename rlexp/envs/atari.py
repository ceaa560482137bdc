"""Atari games as in Mnih et al. 2015: no-op starts, the maximum of two frames, a life as an episode, fire to begin.

The wrappers of single envs define the rules of Atari games, and play all videos. Games are trained in ale-py's
vectorised env if that computes the same: emulating, skipping, taking the maximum of two frames, making them grey and
small, and starting with no-ops, in C++. In ale-py, the end of a life has another meaning (its ``episodic_life`` starts
a new game). So NativeGames computes lives, scores and stacks of frames, for all games at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from rlexp.envs.checked_env import Start, Step
from rlexp.envs.registry import Env, FrameConfig
from rlexp.envs.wrappers import STACKED_FRAMES, ScaledFrames, StackedFrames
from rlexp.errors import UsageError
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

MAX_NOOPS = 30
"""Most frames that a game runs before the agent plays, so that games begin differently."""
FRAME_SKIP = 4
"""Frames that an action lasts, if the env's id does not set it."""
FRAMES_PER_SECOND = 60
"""Frames per second of the console."""

GAME_OVER = "rlexp.game_over"
"""Key in the info of every step and reset, private as no env has it: whether a whole game is over, not only a life."""
GAME_SCORE = "rlexp.game_score"
"""Key of a game's score at its end: the sum of unclipped rewards over all lives; else 0."""
GAME_STEPS = "rlexp.game_steps"
"""Key of a game's steps at its end; else 0."""
Seeds = int | list[int | None] | None
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


ENTRY_POINT = "ale_py.env:AtariEnv"
SAME_ARGUMENTS = frozenset({"game", "repeat_action_probability", "full_action_space"})
"""Arguments with the same meaning for ale-py's env and its vectorised one."""
OWN_ARGUMENTS = frozenset({"obs_type", "frameskip", "max_num_frames_per_episode"})
"""Arguments that are part of the rules; with any other one, only the env itself can play."""
ENDLESS = 2**31 - 1
"""Frames after which the vectorised env would truncate a game: the rules do it, at the end of a step."""
SEED_MASK = 2**31 - 1
"""Seeds of the vectorised env have no sign."""
FRAME_BITS = 8
"""Bits of a frame in a pixel with four frames."""
ALL_FRAMES = 0x01010101
"""Times a byte, a pixel whose four frames all have that byte."""


def can_be_native(spec: EnvSpec, rules: AtariRules) -> bool:
    """Return whether ale-py's vectorised env plays the game of ``spec`` by ``rules``."""
    known = rules.env_arguments.keys() <= SAME_ARGUMENTS | OWN_ARGUMENTS
    return spec.entry_point == ENTRY_POINT and rules.skip is not None and known


def make_native_games(rules: AtariRules, frames: FrameConfig, num_envs: int, num_threads: int) -> NativeGames:
    """Make ``num_envs`` games that ``num_threads`` threads step together; only if ``can_be_native``."""
    from ale_py import Action
    from ale_py.vector_env import AtariVectorEnv

    assert rules.skip is not None
    native = AtariVectorEnv(
        num_envs=num_envs,
        num_threads=num_threads,
        **{name: value for name, value in rules.env_arguments.items() if name in SAME_ARGUMENTS},
        frameskip=rules.skip,
        max_num_frames_per_episode=ENDLESS,
        img_height=frames.atari_dim,
        img_width=frames.atari_dim,
        stack_num=1,
        noop_max=MAX_NOOPS + 1,
        reward_clipping=False,
    )
    actions = list(native.ale.get_action_set())
    first_action = actions.index(Action.FIRE) if Action.FIRE in actions else actions.index(Action.NOOP)
    return NativeGames(native, frames, rules.max_steps, first_action)


class NativeGames(VectorEnv[Array, Array, Array]):
    """M Atari games with an episode for each life; owns the vectorised env and its threads, which ``close`` ends.

    The step after an episode's end begins the next one (``AutoresetMode.NEXT_STEP``): with a new game if
    that was over, else with one step of ``first_action`` in the same game.
    """

    def __init__(self, native: AtariVectorEnv, frames: FrameConfig, max_steps: int | None, first_action: int) -> None:
        self._native = native
        self._max_steps = ENDLESS if max_steps is None else max_steps
        self._first_action = first_action
        self._stacked = frames.framestack
        channels, dim = STACKED_FRAMES if frames.framestack else 1, frames.atari_dim
        self.num_envs = native.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(0, 255, (dim, dim, channels), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space, self.action_space = native.single_action_space, native.action_space
        self._ended, self._over, self._cut = (np.zeros(self.num_envs, bool) for _ in range(3))
        self._scores, self._steps = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._lives = np.zeros(self.num_envs, np.int32)
        self._stacks = np.zeros((self.num_envs, dim, dim), np.uint32)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        frames, infos = self._native.reset(seed=_ale_seeds(seed, self.num_envs))
        for state in (self._ended, self._over, self._cut, self._scores, self._steps):
            state.fill(0)
        self._lives = infos["lives"].copy()
        self._push(frames, begins=np.ones(self.num_envs, bool))
        return self._observations(frames), self._infos(np.zeros(self.num_envs, bool))

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        begins, new_games = self._ended, self._over | self._cut
        sent = np.where(begins, self._first_action, actions)
        frames, rewards, over, _, infos = self._native.step(sent)
        self._scores = np.where(new_games, 0.0, self._scores + rewards)
        self._steps = np.where(new_games, 0, self._steps + 1)
        over, cut = over & ~new_games, self._steps >= self._max_steps
        lives = infos["lives"]
        # Some games show 0 lives for a moment before they are over.
        lost_a_life = (lives > 0) & (lives < self._lives)
        report = self._infos(over | cut)
        # Games that were truncated, or ended with their first step: the vectorised env would begin them a step later.
        late = self._cut | (begins & (over | cut))
        if late.any():
            frames, infos = self._native.reset(options={"reset_mask": late})
            lives = infos["lives"]
            self._scores[late], self._steps[late] = 0.0, 0
        terminated, truncated = (over | lost_a_life) & ~begins, cut & ~begins
        self._lives, self._ended = lives.copy(), terminated | truncated
        self._over, self._cut = over & ~late, cut & ~over & ~late
        self._push(frames, begins)
        return self._observations(frames), np.where(begins, 0.0, rewards), terminated, truncated, report

    def close_extras(self, **kwargs: Any) -> None:
        del self._native.ale  # this also ends its threads

    def _push(self, frames: Array, begins: Array) -> None:
        """Append ``frames [M, 1, dim, dim]`` to the last three, or repeat them four times if an episode ``begins [M]``.

        A pixel's four frames are the bytes of one number, the oldest is the lowest: a shift of bits moves them.
        """
        if not self._stacked:
            return
        stacks = self._stacks >> np.uint32(FRAME_BITS)
        _bytes(stacks)[..., -1] = frames[:, 0]
        stacks[begins] = frames[begins, 0] * np.uint32(ALL_FRAMES)
        self._stacks = stacks

    def _observations(self, frames: Array) -> Array:
        return _bytes(self._stacks) if self._stacked else frames[:, 0, :, :, None].copy()

    def _infos(self, over: Array) -> dict[str, Any]:
        return {
            GAME_OVER: over,
            GAME_SCORE: np.where(over, self._scores, 0.0),
            GAME_STEPS: np.where(over, self._steps, 0),
        }


def _bytes(stacks: Array) -> Array:
    """Return ``stacks [M, dim, dim]`` of 32 bits as bytes ``[M, dim, dim, 4]``."""
    return stacks.view(np.uint8).reshape(*stacks.shape, STACKED_FRAMES)


def _ale_seeds(seed: Seeds, num_envs: int) -> Array | None:
    """Return the seeds ``[M]`` of the emulators in ale-py's own envs, for the seeds of a vector env."""
    if seed is None:
        return None
    seeds = [seed + index for index in range(num_envs)] if isinstance(seed, int) else seed
    return np.array([np.random.SeedSequence(each).generate_state(2)[1] & SEED_MASK for each in seeds], np.int64)
