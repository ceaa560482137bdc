from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.rollout.exploration import AnnealedEpsilon, ConstantEpsilon, epsilon_ladder, explore
from rlexp.schedules import LinearSchedule

DRAWS = 40_000
SIGMAS = 5


def assert_frequency(hits: int, draws: int, chance: float) -> None:
    """Fail where ``hits`` lies more than SIGMAS standard deviations from its expectation."""
    assert abs(hits - draws * chance) <= SIGMAS * math.sqrt(draws * chance * (1 - chance))


@pytest.mark.parametrize("epsilon", [0.02, 0.4])
def test_actions_are_replaced_as_often_as_epsilon_says(epsilon: float) -> None:
    greedy = np.full(DRAWS, 3)
    explored = explore(greedy, np.full(DRAWS, epsilon), 5, np.random.default_rng(0))
    # A random action is the greedy one, too, in one of five draws.
    assert_frequency(int(np.count_nonzero(explored != 3)), DRAWS, epsilon * 4 / 5)


def test_random_actions_are_uniform() -> None:
    explored = explore(np.full(DRAWS, 3), np.ones(DRAWS), 5, np.random.default_rng(1))
    counts = np.bincount(explored, minlength=5)
    assert len(counts) == 5
    for count in counts.tolist():
        assert_frequency(count, DRAWS, 1 / 5)


def test_each_env_has_its_own_epsilon() -> None:
    epsilons = np.tile([0.0, 0.5], DRAWS)
    explored = explore(np.full(2 * DRAWS, 3), epsilons, 5, np.random.default_rng(2)).reshape(DRAWS, 2)
    assert (explored[:, 0] == 3).all()
    assert_frequency(int(np.count_nonzero(explored[:, 1] != 3)), DRAWS, 0.5 * 4 / 5)


def test_exploring_is_reproducible_and_leaves_the_greedy_actions_alone() -> None:
    greedy = np.arange(100)
    greedy.setflags(write=False)
    first, second = (explore(greedy, np.full(100, 0.5), 100, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert first.tolist() != greedy.tolist()
    assert first.dtype == greedy.dtype


def test_the_ladder_by_hand() -> None:
    # 0.4^1, 0.4^(1 + 7/3), 0.4^(1 + 14/3), 0.4^8
    assert epsilon_ladder(4) == pytest.approx((0.4, 0.0471557, 0.00555913, 0.00065536), rel=1e-5)
    assert epsilon_ladder(2) == pytest.approx((0.4, 0.00065536))
    assert epsilon_ladder(1) == (0.4,)


def test_a_constant_epsilon_ignores_the_clock() -> None:
    schedule = ConstantEpsilon((0.4, 0.01))
    assert schedule.epsilons(0).tolist() == schedule.epsilons(10**9).tolist() == [0.4, 0.01]


def test_an_annealed_epsilon_follows_the_clock_in_every_env() -> None:
    schedule = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 100), num_envs=3)
    assert schedule.epsilons(0).tolist() == [1.0] * 3
    assert schedule.epsilons(25).tolist() == [0.75] * 3
    assert schedule.epsilons(10**6).tolist() == [0.0] * 3
