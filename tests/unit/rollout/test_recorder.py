"""What a recorder does beside stepping: moments of observations, clipped rewards, joined fragments, a thread ahead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.rollout.filters import LARGEST_DEVIATION, MeanStdFilter, Moments, ObservedMoments
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.recorder import FragmentRecorder, RecordingAhead, RewardLimits, clip_rewards
from rlexp.sample_batch import Array
from tests.lab.doubles import CountingPolicy
from tests.lab.envs import COUNTING_ENV
from tests.lab.rollout import PLAIN

NOTHING = Moments.none((2,))


def draw(count: int, seed: int, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1.0, (count, 2))


def assert_moments_of(moments: Moments, observations: Array) -> None:
    assert moments.count == len(observations)
    np.testing.assert_allclose(moments.mean, observations.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.deviation, observations.std(axis=0, ddof=1), rtol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(0, 2**16), st.sampled_from([0.0, 1e3, 1e6]))
def test_merging_in_any_grouping_equals_all_at_once(sizes: list[int], seed: int, mean: float) -> None:
    parts = [draw(size, seed + index, mean) for index, size in enumerate(sizes)]
    one_by_one = NOTHING
    for part in parts:
        one_by_one = one_by_one.merged(Moments.of(part))
    middle = len(parts) // 2
    halves = [Moments.of(np.concatenate(half)) for half in (parts[:middle], parts[middle:])]
    for moments in (one_by_one, halves[0].merged(halves[1]), halves[1].merged(halves[0])):
        assert_moments_of(moments, np.concatenate(parts))


def test_a_large_mean_does_not_swallow_the_deviation() -> None:
    # The textbook's mean of squares less the square of the mean has no digit left here.
    observations = 1e9 + np.arange(100.0)[:, None] * np.ones(2)
    moments = NOTHING
    for start in range(0, 100, 7):
        moments = moments.merged(Moments.of(observations[start : start + 7]))
    np.testing.assert_allclose(moments.deviation, np.arange(100.0).std(ddof=1), rtol=1e-6)


def test_float32_observations_are_counted_in_float64() -> None:
    moments = Moments.of(np.full((1000, 2), 16_777_217.0 + 2, np.float32))
    assert moments.mean.dtype == moments.squares.dtype == np.float64
    assert (moments.squares == 0).all()


def test_nothing_changes_what_it_is_merged_with() -> None:
    moments = Moments.of(draw(5, 0))
    for merged in (moments.merged(NOTHING), NOTHING.merged(moments)):
        assert_moments_of(merged, draw(5, 0))
    assert NOTHING.merged(NOTHING).count == 0


def test_standardising_by_hand() -> None:
    moments = Moments.of(np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0]]))
    found = moments.standardise(np.array([[6.0, 10.0], [-98.0, 10.5]]))
    assert found.dtype == np.float32
    # Mean 2, deviation 2; the second element stood still so far, and its first move is cut.
    assert found.tolist() == [[2.0, 0.0], [-LARGEST_DEVIATION, LARGEST_DEVIATION]]


def test_before_anything_was_seen_observations_stay() -> None:
    assert NOTHING.standardise(np.array([[3.0, 4.0]])).tolist() == [[3.0, 4.0]]


def test_a_filter_goes_by_its_own_observations_until_it_is_given_shared_ones() -> None:
    own, shared = draw(20, 1), Moments.of(draw(50, 2, mean=5.0))
    standardise = MeanStdFilter(NOTHING)
    standardise(own[:10])
    np.testing.assert_allclose(standardise(own[10:]), Moments.of(own).standardise(own[10:]), rtol=1e-5)
    standardise.share(shared)
    np.testing.assert_array_equal(standardise(own[:3]), shared.standardise(own[:3]))
    np.testing.assert_array_equal(standardise(own[:3]), shared.standardise(own[:3]))


def test_a_filter_tells_each_observation_once_whatever_it_goes_by() -> None:
    standardise = MeanStdFilter(Moments.of(draw(7, 3)))
    standardise(draw(4, 4))
    standardise(draw(5, 5))
    assert_moments_of(standardise.drain(), np.concatenate([draw(4, 4), draw(5, 5)]))
    assert standardise.drain().count == 0
    standardise.share(NOTHING)
    standardise(draw(6, 6))
    assert_moments_of(standardise.drain(), draw(6, 6))


@pytest.mark.parametrize("shared", [True, False])
def test_what_workers_observed_survives_a_checkpoint(shared: bool) -> None:
    observed = ObservedMoments(3, (2,), shared)
    parts = [draw(5 + worker, worker, mean=worker) for worker in range(3)]
    for worker, part in enumerate(parts):
        observed.add(worker, Moments.of(part))
    restored = ObservedMoments(3, (2,), shared)
    restored.load(observed.state())
    for worker, part in enumerate(parts):
        assert_moments_of(restored.of_worker(worker), np.concatenate(parts) if shared else part)
    assert_moments_of(restored.of_all(), np.concatenate(parts))


def test_another_number_of_workers_goes_on_with_everything_observed() -> None:
    observed = ObservedMoments(2, (2,), shared=False)
    for worker in range(2):
        observed.add(worker, Moments.of(draw(9, worker)))
    restored = ObservedMoments(3, (2,), shared=False)
    restored.load(observed.state())
    assert_moments_of(restored.of_worker(2), np.concatenate([draw(9, 0), draw(9, 1)]))


def test_at_a_border_the_outputs_of_the_weights_that_acted_there_stay() -> None:
    flags, steps = np.zeros((2, 1), bool), np.zeros((2, 1))
    parts = [
        Fragment(np.zeros((3, 1)), steps, steps, flags, flags, ~flags, {"values": np.array(values)[:, None]})
        for values in ([1, 2, 3], [30, 40, 50])
    ]
    joined = Fragment.join(parts)
    assert joined.outputs["values"].ravel().tolist() == [1, 2, 30, 40, 50]
    assert joined.since(3).outputs["values"].ravel().tolist() == [40, 50]


@pytest.mark.parametrize(
    "refused",
    [lambda ahead: ahead.set_weights(1, {"no such": np.zeros(1)}), lambda ahead: ahead.set_filter(NOTHING)],
    ids=["weights without a version", "a filter where there is none"],
)
def test_what_the_thread_refuses_is_an_error_of_the_next_fragment(refused: Callable[[RecordingAhead], None]) -> None:
    env = make_vector_env(EnvConfig(COUNTING_ENV), 1)
    ahead = RecordingAhead(FragmentRecorder(env, CountingPolicy(), PLAIN, seed=0))
    refused(ahead)
    with pytest.raises((KeyError, AssertionError)):
        ahead.record(0)
    ahead.stop()
    ahead.stop()


REWARDS = [-7.0, -0.5, 0.0, 1e-50, 3.0]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (False, REWARDS),
        (True, [-1.0, -1.0, 0.0, 1.0, 1.0]),
        (2.0, [-2.0, -0.5, 0.0, 1e-50, 2.0]),
        (1.0, [-1.0, -0.5, 0.0, 1e-50, 1.0]),
        ((-1.0, 2.0), [-1.0, -0.5, 0.0, 1e-50, 2.0]),
        ((0.5, 9.0), [0.5, 0.5, 0.5, 0.5, 3.0]),
    ],
)
def test_clipping_by_hand(limits: RewardLimits, expected: list[float]) -> None:
    rewards = np.array(REWARDS)
    assert clip_rewards(rewards, limits).tolist() == expected
    assert rewards.tolist() == REWARDS
