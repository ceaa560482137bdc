"""The pixel game of the learning tests can be won, but not by who sees only one frame."""

from __future__ import annotations

import numpy as np

from rlexp.envs import EnvConfig, make_vector_env
from rlexp.sample_batch import Array
from tests.pixel_games import BALLS, CATCH, CELL_PIXELS, CELLS

STAY = 1
EPISODES = 40


def positions(frame: Array) -> tuple[int, int, int]:
    """Return row and column of the ball, and the column of the bat."""
    board = frame[::CELL_PIXELS, ::CELL_PIXELS]
    (row,), (column,) = (board == 255).nonzero()
    return int(row), int(column), int((board[-1] == 128).nonzero()[0][0])


def towards(target: int, bat: int) -> int:
    return STAY + int(np.sign(target - bat))


def follow(stack: Array) -> int:
    """Go to where the ball is."""
    _, column, bat = positions(stack[..., -1])
    return towards(column, bat)


def foresee(stack: Array) -> int:
    """Go to where the ball will arrive, once two frames of it tell."""
    (earlier_row, earlier, _), (row, column, bat) = positions(stack[..., -2]), positions(stack[..., -1])
    if row != earlier_row + 1:
        return towards(column, bat)
    direction = column - earlier
    for _ in range(CELLS - 1 - row):
        if not 0 <= column + direction < CELLS:
            direction = -direction
        column += direction
    return towards(column, bat)


def mean_return(play: object) -> float:
    vector = make_vector_env(EnvConfig(CATCH, {}, None), 1)
    obs, _ = vector.reset(seed=0)
    total, episodes = 0.0, 0
    while episodes < EPISODES:
        obs, rewards, terminated, _, _ = vector.step(np.array([play(obs[0])]))  # type: ignore[operator]
        total, episodes = total + float(rewards[0]), episodes + int(terminated[0])
    return total / EPISODES


def test_who_sees_the_direction_catches_nearly_all() -> None:
    assert mean_return(foresee) > 0.8 * BALLS


def test_who_sees_one_frame_misses_what_falls_aslant() -> None:
    assert mean_return(follow) < 0
