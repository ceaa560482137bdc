"""Statistics over seeds: worked by hand, compared with rliable, and with slow simple models."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp import metrics
from rlexp.metrics import (
    LONGEST_GAP_S,
    Estimate,
    Laps,
    Mean,
    MetricWindows,
    RunningClock,
    Stopwatch,
    bootstrap_interval,
    final_score,
    improvement_probability,
    interquartile_band,
    interquartile_mean,
    interquartile_mean_of,
)

Scores = Sequence[float]

MINE = [[12.0, 45, 23, 91, 5, 38, 77], [31.0, 8, 57, 14, 66, 29, 41]]
THEIRS = [[20.0, 51, 9, 44, 30], [3.0, 9, 22, 18, 35]]
"""Two environments with a list of scores each."""

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)
STRATA = st.lists(SCORES, min_size=1, max_size=3)


def iqm(strata: Sequence[Scores], seed: int = 0) -> Estimate:
    return interquartile_mean_of([np.array(scores) for scores in strata], np.random.default_rng(seed))


def better(mine: Sequence[Scores], theirs: Sequence[Scores], seed: int = 0) -> Estimate:
    strata, over = ([np.array(scores) for scores in side] for side in (mine, theirs))
    return improvement_probability(strata, over, np.random.default_rng(seed))


def slow_iqm(scores: Scores) -> float:
    cut = int(0.25 * len(scores))
    return fmean(sorted(scores)[cut : len(scores) - cut])


def slow_probability(mine: Scores, theirs: Scores) -> float:
    return fmean((x > y) + 0.5 * (x == y) for x, y in itertools.product(mine, theirs))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 0.0, 9.0], 3.0),  # too few to leave any out
        ([100.0, 2.0, 4.0, -100.0], 3.0),
        ([1.0, 2.0, 3.0, 4.0, 1000.0], 3.0),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.0], 2.5),
    ],
)
def test_interquartile_mean_by_hand(scores: list[float], expected: float) -> None:
    assert iqm([scores]).value == pytest.approx(expected)


def test_interquartile_mean_along_last_axis() -> None:
    table = np.array([[0.0, 1, 2, 90], [-90.0, 5, 7, 9]])
    assert interquartile_mean(table).tolist() == [1.5, 6.0]


def test_estimates_match_rliable() -> None:
    # rliable 1.2.0: aggregate_iqm with 100 000 resamples, probability_of_improvement with 30 000.
    aggregate, improvement = iqm(MINE), better(MINE, THEIRS)
    assert aggregate.value == pytest.approx(34.75, abs=1e-6)
    assert aggregate.interval == pytest.approx((20.75, 52.5), abs=0.6)
    assert improvement.value == pytest.approx(0.65714286, abs=1e-6)
    assert improvement.interval == pytest.approx((0.42857143, 0.87142857), abs=0.015)


@settings(max_examples=50, deadline=None)
@given(STRATA)
def test_interquartile_mean_matches_slow_model(strata: list[list[float]]) -> None:
    expected = slow_iqm([score for scores in strata for score in scores])
    assert iqm(strata).value == pytest.approx(expected, rel=1e-9, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(SCORES, SCORES)
def test_improvement_probability_matches_slow_model(mine: list[float], theirs: list[float]) -> None:
    assert better([mine], [theirs]).value == pytest.approx(slow_probability(mine, theirs))
    assert better([theirs], [mine]).value == pytest.approx(1 - slow_probability(mine, theirs))


def test_improvement_probability_averages_envs() -> None:
    assert better([[2.0], [2.0, 2.0]], [[1.0], [2.0, 3.0]]).value == pytest.approx((1.0 + 0.25) / 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_intervals_match_slow_bootstrap(seed: int) -> None:
    generator = random.Random(seed)
    means, shares = [], []
    for _ in range(4000):
        mine, theirs = ([generator.choices(scores, k=len(scores)) for scores in side] for side in (MINE, THEIRS))
        means.append(slow_iqm([score for scores in mine for score in scores]))
        shares.append(fmean(map(slow_probability, mine, theirs)))
    assert iqm(MINE, seed).interval == pytest.approx(percentiles(means), abs=1.2)
    assert better(MINE, THEIRS, seed).interval == pytest.approx(percentiles(shares), abs=0.03)


def percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[round(0.025 * len(ordered))], ordered[round(0.975 * len(ordered)) - 1]


@settings(max_examples=30, deadline=None)
@given(STRATA, st.integers(0, 100), st.randoms(use_true_random=False))
def test_interval_contains_mean_and_ignores_order(
    strata: list[list[float]], seed: int, generator: random.Random
) -> None:
    estimate = iqm(strata, seed)
    shuffled = [generator.sample(scores, len(scores)) for scores in strata]
    assert iqm(shuffled, seed).interval == estimate.interval
    assert iqm(shuffled, seed).value == pytest.approx(estimate.value, rel=1e-9, abs=1e-6)
    if estimate.interval is None:
        assert max(map(len, strata)) == 1
    else:
        slack = 1e-9 * max(abs(score) for scores in strata for score in scores)
        assert estimate.interval[0] - slack <= estimate.value <= estimate.interval[1] + slack


@settings(max_examples=30, deadline=None)
@given(SCORES, SCORES, st.randoms(use_true_random=False))
def test_probability_interval_contains_it_and_ignores_order(
    mine: list[float], theirs: list[float], generator: random.Random
) -> None:
    estimate = better([mine], [theirs])
    assert better([generator.sample(mine, len(mine))], [generator.sample(theirs, len(theirs))]) == estimate
    if estimate.interval is None:
        assert min(len(mine), len(theirs)) == 1
    else:
        assert 0.0 <= estimate.interval[0] <= estimate.value + 1e-9
        assert estimate.value - 1e-9 <= estimate.interval[1] <= 1.0


def test_interval_depends_on_seed() -> None:
    intervals = [iqm(MINE, seed).interval for seed in (3, 3, 4)]
    assert intervals[0] == intervals[1] != intervals[2]


def test_bootstrap_draws_seeds_within_env() -> None:
    # Equal scores within each: however seeds are drawn, the same scores come out.
    assert iqm([[0.0] * 4, [100.0] * 4]).interval == (50.0, 50.0)


def test_single_seed_has_no_interval() -> None:
    assert iqm([[5.0]]) == Estimate(5.0, None)
    assert better([[5.0]], [[1.0, 9.0]]) == Estimate(0.5, None)


def test_band_is_interquartile_mean_of_each_point() -> None:
    curves = np.array([[0.0, 10.0, 5.0], [1.0, 20.0, 5.0], [2.0, 30.0, 5.0], [9.0, 99.0, 5.0]])
    middle, low, high = interquartile_band(curves, np.random.default_rng(0), resamples=500)
    assert middle.tolist() == [1.5, 25.0, 5.0]
    assert (low[2], high[2]) == (5.0, 5.0)
    assert (low[:2] < middle[:2]).all()
    assert (high[:2] > middle[:2]).all()


def test_band_of_one_curve_is_the_curve() -> None:
    middle, low, high = interquartile_band(np.array([[1.0, 2.0]]), np.random.default_rng(0), resamples=10)
    assert middle.tolist() == low.tolist() == high.tolist() == [1.0, 2.0]


def test_bootstrap_interval_of_equal_values() -> None:
    assert bootstrap_interval(np.full(10, 3.0), np.random.default_rng(0)) == (3.0, 3.0)


def test_bootstrap_interval_of_normal_values_is_1_96_standard_errors() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, size=400)
    low, high = bootstrap_interval(values, np.random.default_rng(2))
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_bootstrap_interval_is_reproducible() -> None:
    values = np.arange(20.0)
    first, again = (bootstrap_interval(values, np.random.default_rng(5)) for _ in range(2))
    assert first == again


def test_final_score_averages_rows_in_window() -> None:
    steps, values = np.array([800, 900, 950, 1000, 1100]), np.array([1.0, 2.0, 4.0, 6.0, 100.0])
    assert final_score(steps, values, 900.0, 1000.0) == pytest.approx(5.0)


def test_final_score_without_row_in_window_is_nearest() -> None:
    assert final_score(np.array([100, 800, 1300]), np.array([1.0, 2.0, 3.0]), 900.0, 1000.0) == 2.0
    assert final_score(np.array([1300, 1400]), np.array([3.0, 4.0]), 900.0, 1000.0) == 3.0


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def lap(stopwatch: Stopwatch, clock: Clock, part: str, seconds: float) -> None:
    with stopwatch.lap(part):
        clock.now_s += seconds


def lap_that_raises(stopwatch: Stopwatch, clock: Clock) -> None:
    with stopwatch.lap("wait"):
        clock.now_s += 2.0
        raise KeyError


def test_stopwatch_adds_laps_of_a_part(clock: Clock) -> None:
    stopwatch = Stopwatch()
    lap(stopwatch, clock, "wait", 2.0)
    lap(stopwatch, clock, "learn", 3.0)
    lap(stopwatch, clock, "wait", 1.0)
    clock.now_s += 4.0
    assert stopwatch.drain() == Laps(elapsed_s=10.0, parts_s={"wait": 3.0, "learn": 3.0})


def test_stopwatch_drain_resets(clock: Clock) -> None:
    stopwatch = Stopwatch()
    lap(stopwatch, clock, "wait", 2.0)
    first = stopwatch.drain()
    lap(stopwatch, clock, "learn", 5.0)
    assert stopwatch.drain() == Laps(elapsed_s=5.0, parts_s={"learn": 5.0})
    assert first.parts_s == {"wait": 2.0}


def test_stopwatch_counts_lap_that_raises(clock: Clock) -> None:
    stopwatch = Stopwatch()
    with pytest.raises(KeyError):
        lap_that_raises(stopwatch, clock)
    assert stopwatch.drain().parts_s == {"wait": 2.0}


def test_running_clock_limits_time_between_calls(clock: Clock) -> None:
    running = RunningClock(clock.perf_counter)
    seen = []
    for seconds in (0.0, 1.0, 2.0, 3600.0, 1.0):
        clock.now_s += seconds
        seen.append(running())
    assert seen == [0.0, 1.0, 3.0, 3.0 + LONGEST_GAP_S, 4.0 + LONGEST_GAP_S]


EPISODES = ("returns", "lengths")


def test_empty_window_is_nan() -> None:
    summary = MetricWindows(3, EPISODES).summary()
    assert set(summary) == {f"{name}_{statistic}" for name in EPISODES for statistic in ("mean", "min", "max")}
    assert all(math.isnan(figure) for figure in summary.values())


@pytest.mark.parametrize(
    ("size", "returns", "length"),
    [(10, (1.0, -2.0, 4.0), 4.0), (2, (1.0, -2.0, 4.0), 5.0), (1, (-2.0, -2.0, -2.0), 5.0)],
)
def test_window_has_the_newest_values_by_hand(size: int, returns: tuple[float, ...], length: float) -> None:
    window = MetricWindows(size, EPISODES)
    window.extend({"returns": np.array([1.0, 4.0]), "lengths": np.array([2, 5])})
    window.extend({"returns": np.array([-2.0]), "lengths": np.array([5])})
    summary = window.summary()
    assert (summary["returns_mean"], summary["returns_min"], summary["returns_max"]) == returns
    assert summary["lengths_mean"] == length
    window.extend({"returns": np.empty(0), "lengths": np.empty(0, np.int64)})
    assert window.summary() == summary
    again = MetricWindows(size)
    for _ in range(2):
        again.load(window.state())
    assert again.summary() == summary, "of names that were not known beforehand, too"


def test_mean_drain_resets() -> None:
    mean = Mean()
    assert mean.drain() == 0.0
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.drain() == 3.0
    mean.add(10.0)
    assert mean.drain() == 10.0
