"""Games of 84x84 pixels that are learned in minutes, so that tests can go the whole way of Atari games quickly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rlexp.envs.wrappers import StackedFrames

CATCH = "tests.lab.pixel_games:Catch"

CELLS = 7
"""Rows and columns of the board."""
CELL_PIXELS = 12
BALLS = 10
"""Balls of an episode."""


class FallingBalls(gym.Env[Any, Any]):
    """Balls fall, straight or aslant, and bounce off the walls; a bat of one cell shall be below when they arrive.

    A ball that is caught pays 1, one that is missed -1. The bat is as fast as a ball and begins where the last
    ball left it: who moves towards where the ball *is* comes a cell too late for all that fall aslant, so the
    direction must be seen, of which one frame ``[84, 84, 1]`` tells nothing.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as in Gymnasium's envs)

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = Box(0, 255, (CELLS * CELL_PIXELS, CELLS * CELL_PIXELS, 1), np.uint8)
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._bat = CELLS // 2
        self._row = self._column = self._direction = self._balls = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._balls, self._bat = 0, int(self.np_random.integers(CELLS))
        self._drop()
        return self._picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._bat = min(max(self._bat + int(action) - 1, 0), CELLS - 1)
        if not 0 <= self._column + self._direction < CELLS:
            self._direction = -self._direction
        self._row, self._column = self._row + 1, self._column + self._direction
        if self._row < CELLS - 1:
            return self._picture(), 0.0, False, False, {}
        reward = 1.0 if self._column == self._bat else -1.0
        self._balls += 1
        self._drop()
        return self._picture(), reward, self._balls == BALLS, False, {}

    def render(self) -> NDArray[np.uint8]:
        return np.repeat(self._picture(), 3, axis=2)

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(CELLS))
        self._direction = int(self.np_random.integers(-1, 2))

    def _picture(self) -> NDArray[np.uint8]:
        board = np.zeros((CELLS, CELLS), np.uint8)
        board[self._row, self._column] = 255
        board[CELLS - 1, self._bat] = 128
        return board.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)[..., None]


class Catch(StackedFrames):
    """FallingBalls with the last four frames in one observation ``[84, 84, 4]``, as Atari games are seen."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(FallingBalls(render_mode))
