"""What counts as an episode: what the env ends, or the game that it says is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlexp.envs import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.rollout.episodes import EpisodeCounter, Finished


def flags(*values: int) -> Any:
    return np.array(values, bool)


def found(finished: Finished | None) -> list[tuple[int, float, int]]:
    assert finished is not None
    return list(zip(finished.envs.tolist(), finished.returns.tolist(), finished.lengths.tolist(), strict=True))


def test_episodes_end_where_the_env_says_and_resets_are_no_steps() -> None:
    counter = EpisodeCounter(2)
    rewards = np.array([1.0, 10.0])
    assert counter.add(rewards, flags(0, 0), {}) is None
    assert found(counter.add(rewards, flags(1, 0), {})) == [(0, 2.0, 2)]
    assert counter.resetting.tolist() == [True, False]
    assert found(counter.add(np.array([0.0, 10.0]), flags(0, 1), {})) == [(1, 30.0, 3)]
    assert found(counter.add(np.array([1.0, 0.0]), flags(1, 0), {})) == [(0, 1.0, 1)]


@pytest.mark.parametrize("life_ends", [0, 1])
def test_games_are_reported_when_they_are_over_and_lives_are_not(life_ends: int) -> None:
    counter = EpisodeCounter(2)

    def infos(*over: int) -> dict[str, Any]:
        return {GAME_OVER: flags(*over), GAME_SCORE: np.array([50.0, 7.0]), GAME_STEPS: np.array([900, 30])}

    assert counter.add(np.ones(2), flags(life_ends, 1), infos(0, 0)) is None
    # A game may end while the env resets: its life ended on the step before.
    assert found(counter.add(np.ones(2), flags(life_ends, 0), infos(0, 1))) == [(1, 7.0, 30)]
    assert found(counter.add(np.ones(2), flags(1, 1), infos(1, 1))) == [(0, 50.0, 900), (1, 7.0, 30)]
