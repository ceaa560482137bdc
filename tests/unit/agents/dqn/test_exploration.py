from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn
from torch import Tensor

from rlexp.agents.dqn.exploration import AnnealedEpsilon, ConstantEpsilon, EpsilonGreedy, draw_softmax, epsilon_ladder
from rlexp.agents.dqn.torch_policy import (
    ADAPTATION_FACTOR,
    ADAPTATION_INTERVAL,
    ParameterNoise,
    divergence,
    divergence_of_epsilon,
)
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule
from tests.lab.dqn import NETWORK

DRAWS = 40_000
SIGMAS = 5


def assert_frequency(hits: int, draws: int, chance: float) -> None:
    """Fail where ``hits`` lies more than SIGMAS standard deviations from its expectation."""
    assert abs(hits - draws * chance) <= SIGMAS * math.sqrt(draws * chance * (1 - chance))


def explore(actions: Array, epsilons: Array, num_actions: int, seed: int) -> Array:
    """Explore for one step in as many envs as there are actions."""
    return EpsilonGreedy(num_actions, np.random.default_rng(seed))(actions, epsilons)


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
    explore_one = EpsilonGreedy(5, np.random.default_rng(4))
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


SEEN = np.zeros((2, 3), np.float32)
ALIKE = torch.zeros(2, 4)
UNLIKE = torch.tensor([[0.0, 0.0, 0.0, 9.0]] * 2)


def make_noise(stddev: float = 0.5, seed: int = 0) -> tuple[QNetwork, ParameterNoise]:
    network = QNetwork(NETWORK)
    return network, ParameterNoise(network, stddev, seed)


def weights_of(network: QNetwork) -> list[Array]:
    return [weight.detach().numpy().copy() for weight in network.parameters()]


def noise_on(network: QNetwork, noise: ParameterNoise) -> Array:
    """Return what lies between all the weights of the two networks, in a row."""
    pairs = zip(weights_of(network), weights_of(noise.network), strict=True)
    return np.concatenate([(perturbed - weight).ravel() for weight, perturbed in pairs])


def test_how_far_epsilon_greedy_is_from_greedy_by_hand() -> None:
    found = divergence_of_epsilon(np.array([0.0, 0.5, 1.0]), num_actions=4)
    assert found == pytest.approx([0.0, -math.log(0.625), math.log(4)])
    assert divergence_of_epsilon(np.array([0.01]), num_actions=2) == pytest.approx([0.0050125418])


VALUES = stn.arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32))


@given(VALUES, VALUES)
def test_how_far_values_are_apart_is_what_the_definition_says(values: Array, perturbed: Array) -> None:
    p, q = (np.exp(each.astype(np.float64)) for each in (values, perturbed))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    expected = sum(p[i, a] * math.log(p[i, a] / q[i, a]) for i in range(3) for a in range(4)) / 3
    assert divergence(torch.tensor(values), torch.tensor(perturbed)) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_values_too_large_for_a_softmax_are_far_apart() -> None:
    assert divergence(torch.tensor([[1e6, 0.0]]), torch.tensor([[0.0, 1e6]])) == pytest.approx(1e6)


def test_every_weight_has_noise_of_the_deviation_on_it() -> None:
    network, noise = make_noise(stddev=0.5)
    before = weights_of(network)
    found = noise_on(network, noise)
    assert (found != 0).all()
    assert found.std() == pytest.approx(0.5, rel=0.1)
    assert found.mean() == pytest.approx(0.0, abs=0.1)
    assert all((now == then).all() for now, then in zip(weights_of(network), before, strict=True))


def test_noise_stays_until_it_is_drawn_afresh() -> None:
    network, noise = make_noise()
    first = noise_on(network, noise)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(3.0)
    noise.perturb()
    assert noise_on(network, noise) == pytest.approx(first, abs=1e-5)
    noise.redraw()
    assert (abs(noise_on(network, noise) - first) > 1e-5).mean() > 0.99


def test_noise_is_drawn_by_its_seed() -> None:
    torch.manual_seed(1)
    network, first = make_noise(seed=1)
    again, other = ParameterNoise(network, 0.5, 1), ParameterNoise(network, 0.5, 2)
    for noise in (first, again, other):
        torch.rand(1)
        noise.redraw()
    assert (noise_on(network, first) == noise_on(network, again)).all()
    assert (noise_on(network, first) != noise_on(network, other)).all()


@pytest.mark.parametrize(
    ("values", "epsilons", "factor"),
    [
        (ALIKE, [0.5, 0.5], ADAPTATION_FACTOR),
        (ALIKE, [0.0, 0.0], ADAPTATION_FACTOR),
        (UNLIKE, [0.5, 0.5], 1 / ADAPTATION_FACTOR),
        (UNLIKE, [0.0, 0.0], 1 / ADAPTATION_FACTOR),
        (torch.full((2, 4), torch.nan), [0.5, 0.5], 1 / ADAPTATION_FACTOR),
    ],
    ids=["alike", "at the threshold", "unlike", "no noise wanted", "beyond all numbers"],
)
def test_the_deviation_grows_while_the_noise_does_too_little_and_else_shrinks(
    values: Tensor, epsilons: list[float], factor: float
) -> None:
    network, noise = make_noise(stddev=0.5)
    before = noise_on(network, noise)
    noise.record(SEEN, ALIKE)
    noise.adapt(values, np.array(epsilons))
    assert noise.stddev == 0.5 * factor
    assert noise_on(network, noise) == pytest.approx(factor * before, abs=1e-6)


@pytest.mark.parametrize(("best", "grows"), [(2.2, True), (2.7, False)])
def test_envs_that_explore_unevenly_want_their_mean(best: float, grows: bool) -> None:
    # The mean of log 4 and 0 is 0.69. Even values are 0.55, or 0.82, away from those whose best stands out so much.
    _, noise = make_noise(stddev=1.0)
    noise.record(SEEN, torch.tensor([[0.0, 0.0, 0.0, best]] * 2))
    noise.adapt(ALIKE, np.array([1.0, 0.0]))
    assert (noise.stddev > 1.0) is grows


def test_it_adapts_by_all_steps_since_the_last_time() -> None:
    _, noise = make_noise(stddev=1.0)
    for step in range(ADAPTATION_INTERVAL):
        assert not noise.wants_to_adapt()
        noise.record(np.full((2, 3), step, np.float32), UNLIKE if step else ALIKE)
    assert noise.wants_to_adapt()
    obs = noise.recorded_obs()
    assert obs[:, 0].tolist() == [step for step in range(ADAPTATION_INTERVAL) for _ in range(2)]
    noise.adapt(torch.zeros(2 * ADAPTATION_INTERVAL, 4), np.array([0.5]))
    assert noise.stddev < 1.0
    assert not noise.wants_to_adapt()


def test_recorded_observations_stay_as_they_were() -> None:
    _, noise = make_noise()
    obs = np.ones((2, 3), np.float32)
    noise.record(obs, ALIKE)
    obs[:] = 5.0
    assert (noise.recorded_obs() == 1.0).all()
