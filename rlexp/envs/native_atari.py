"""Atari games in ale-py's vectorised env, where that computes what the wrappers of :mod:`rlexp.envs.atari` do.

Emulating, skipping, taking the maximum of two frames, making them grey and small, and starting with no-ops
are done in C++. What ale-py means by the end of a life is not what is meant here (its ``episodic_life``
starts a new game), so lives, scores and stacks of frames are kept here, for all games at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS, MAX_NOOPS, AtariRules
from rlexp.envs.env_config import FrameConfig
from rlexp.envs.frames import STACKED_FRAMES

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

Array = NDArray[Any]
Seeds = int | list[int | None] | None

ENTRY_POINT = "ale_py.env:AtariEnv"
SAME_ARGUMENTS = frozenset({"game", "repeat_action_probability", "full_action_space"})
"""Arguments that mean the same to ale-py's env and to its vectorised one."""
OWN_ARGUMENTS = frozenset({"obs_type", "frameskip", "max_num_frames_per_episode"})
"""Arguments that are part of the rules; with any other one, only the env itself can play."""
ENDLESS = 2**31 - 1
"""Frames after which the vectorised env would cut a game: the rules do it, at the end of a step."""
SEED_MASK = 2**31 - 1
"""Seeds of the vectorised env have no sign."""
FRAME_BITS = 8
"""Bits of a frame in a pixel that holds four."""
ALL_FRAMES = 0x01010101
"""Times a byte, a pixel whose four frames are all that byte."""


def can_be_native(spec: EnvSpec, rules: AtariRules) -> bool:
    """Return whether ale-py's vectorised env plays the game of ``spec`` by ``rules``."""
    known = rules.env_arguments.keys() <= SAME_ARGUMENTS | OWN_ARGUMENTS
    return spec.entry_point == ENTRY_POINT and rules.skip is not None and known


def make_native_games(rules: AtariRules, frames: FrameConfig, num_envs: int, num_threads: int) -> NativeGames:
    """Make ``num_envs`` games that ``num_threads`` threads step together; only where ``can_be_native``."""
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
        # Those that were cut, or ended with their first step: the vectorised env would begin them a step later.
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
        del self._native.ale  # its threads end with it

    def _push(self, frames: Array, begins: Array) -> None:
        """Put ``frames [M, 1, dim, dim]`` behind the three before, or four times where an episode ``begins [M]``.

        A pixel's four frames are the bytes of one number, the oldest its lowest: moving them is moving its bits.
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
    """Return ``stacks [M, dim, dim]`` of 32 bits as the bytes ``[M, dim, dim, 4]`` that they are."""
    return stacks.view(np.uint8).reshape(*stacks.shape, STACKED_FRAMES)


def _ale_seeds(seed: Seeds, num_envs: int) -> Array | None:
    """Return the seeds ``[M]`` that ale-py's own env would give its emulator for those of a vector env."""
    if seed is None:
        return None
    seeds = [seed + index for index in range(num_envs)] if isinstance(seed, int) else seed
    return np.array([np.random.SeedSequence(each).generate_state(2)[1] & SEED_MASK for each in seeds], np.int64)
