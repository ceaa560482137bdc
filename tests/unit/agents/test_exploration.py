from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.agents.dqn.exploration import AnnealedEpsilon, ConstantEpsilon, EpsilonGreedy, draw_softmax, epsilon_ladder
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule

DRAWS = 40_000
SIGMAS = 5


def assert_frequency(hits: int, draws: int, chance: float) -> None:
    """Fail where ``hits`` lies more than SIGMAS standard deviations from its expectation."""
    assert abs(hits - draws * chance) <= SIGMAS * math.sqrt(draws * chance * (1 - chance))


def explore(actions: Array, epsilons: Array, num_actions: int, seed: int) -> Array:
    """Explore for one step in as many envs as there are actions."""
    return EpsilonGreedy(len(actions), num_actions, np.random.default_rng(seed))(actions, epsilons)


@pytest.mark.parametrize("epsilon", [0.02, 0.4])
def test_actions_are_replaced_as_often_as_epsilon_says(epsilon: float) -> None:
    greedy = np.full(DRAWS, 3)
    explored = explore(greedy, np.full(DRAWS, epsilon), 5, seed=0)
    # A random action is the greedy one, too, in one of five draws.
    assert_frequency(int(np.count_nonzero(explored != 3)), DRAWS, epsilon * 4 / 5)


def test_random_actions_are_uniform() -> None:
    explored = explore(np.full(DRAWS, 3), np.ones(DRAWS), 5, seed=1)
    counts = np.bincount(explored, minlength=5)
    assert len(counts) == 5
    for count in counts.tolist():
        assert_frequency(count, DRAWS, 1 / 5)


def test_each_env_has_its_own_epsilon() -> None:
    epsilons = np.tile([0.0, 0.5], DRAWS)
    explored = explore(np.full(2 * DRAWS, 3), epsilons, 5, seed=2).reshape(DRAWS, 2)
    assert (explored[:, 0] == 3).all()
    assert_frequency(int(np.count_nonzero(explored[:, 1] != 3)), DRAWS, 0.5 * 4 / 5)


def test_exploring_is_reproducible_and_leaves_the_greedy_actions_alone() -> None:
    greedy = np.arange(100)
    greedy.setflags(write=False)
    first, second = (explore(greedy, np.full(100, 0.5), 100, seed=3) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert first.tolist() != greedy.tolist()
    assert first.dtype == greedy.dtype


def test_every_step_is_drawn_for_anew() -> None:
    explore_one = EpsilonGreedy(1, 5, np.random.default_rng(4))
    explored = np.array([explore_one(np.array([3]), np.array([0.4]))[0] for _ in range(DRAWS)])
    assert_frequency(int(np.count_nonzero(explored != 3)), DRAWS, 0.4 * 4 / 5)
    # Of two random steps in a row, one of five pairs repeats its action.
    wandering = np.array([explore_one(np.array([3]), np.ones(1))[0] for _ in range(DRAWS)])
    assert_frequency(int(np.count_nonzero(wandering[1:] == wandering[:-1])), DRAWS - 1, 1 / 5)


def test_the_ladder_by_hand() -> None:
    # 0.4^1, 0.4^(1 + 7/3), 0.4^(1 + 14/3), 0.4^8
    assert epsilon_ladder(4) == pytest.approx((0.4, 0.0471557, 0.00555913, 0.00065536), rel=1e-5)
    assert epsilon_ladder(2) == pytest.approx((0.4, 0.00065536))
    assert epsilon_ladder(1) == (0.4,)


def test_a_constant_epsilon_ignores_the_clock() -> None:
    schedule = ConstantEpsilon((0.4, 0.01))
    assert schedule.epsilons(0).tolist() == schedule.epsilons(10**9).tolist() == [0.4, 0.01]


def test_an_annealed_epsilon_follows_the_clock_in_every_env() -> None:
    schedule = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 100), warmup_timesteps=0, num_envs=3)
    assert schedule.epsilons(0).tolist() == [1.0] * 3
    assert schedule.epsilons(25).tolist() == [0.75] * 3
    assert schedule.epsilons(10**6).tolist() == [0.0] * 3


@pytest.mark.parametrize("timesteps", [0, 100])
def test_an_annealed_epsilon_waits_for_the_end_of_its_warmup(timesteps: int) -> None:
    schedule = AnnealedEpsilon(LinearSchedule(0.9, 0.1, timesteps), warmup_timesteps=50, num_envs=1)
    assert schedule.epsilons(0).tolist() == schedule.epsilons(49).tolist() == [0.9]
    assert schedule.epsilons(50 + timesteps).tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("offset", [0.0, -1e4, 1e4])
def test_softmax_draws_by_hand(offset: float) -> None:
    # e^1 : e^2 : e^0, whatever is added to all values.
    values = np.tile(np.array([1.0, 3.0, -1.0]) + offset, (DRAWS, 1))
    counts = np.bincount(draw_softmax(values, 2.0, np.random.default_rng(4)), minlength=3)
    for count, weight in zip(counts.tolist(), (math.e, math.e**2, 1.0), strict=True):
        assert_frequency(count, DRAWS, weight / (math.e + math.e**2 + 1.0))


def test_a_temperature_near_zero_is_greedy() -> None:
    values = np.array([[0.1, 0.2], [3e30, 1e30]], np.float32)
    for _ in range(20):
        assert draw_softmax(values, 1e-300, np.random.default_rng(5)).tolist() == [1, 0]
