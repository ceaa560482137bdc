"""Running moments against numpy over everything at once.

The thread that records ahead, around a recorder that does what a test tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.policy import Weights
from rlexp.rollout.filters import LARGEST_DEVIATION, MeanStdFilter, Moments, ObservedMoments
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.recorder import Recording, RecordingAhead, clip_rewards
from rlexp.rollout.worker_spec import RewardLimits
from rlexp.sample_batch import Array

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


def make_fragment(start: int, steps: int) -> Fragment:
    """Steps ``start`` and on of two envs; each observation and action is its step's number."""
    times = np.arange(start, start + steps + 1)[:, None].repeat(2, axis=1)
    flags = np.zeros((steps, 2), bool)
    return Fragment(times[..., None], times[:-1], times[:-1].astype(np.float32), flags, flags, ~flags)


def times(column: Array) -> list[int]:
    assert (column[:, 0] == column[:, 1]).all()
    return [int(value) for value in column[:, 0].ravel()]


def test_since_keeps_one_observation_more_than_steps() -> None:
    fragment = make_fragment(10, 4).since(3)
    assert fragment.num_steps == 1
    assert times(fragment.actions) == [13]
    assert times(fragment.obs) == [13, 14]


def test_since_the_end_keeps_the_last_observation() -> None:
    fragment = make_fragment(10, 4).since(4)
    assert fragment.num_steps == 0
    assert times(fragment.obs) == [14]


def test_followed_by_joins_the_streams_without_doubling_the_observation_between() -> None:
    joined = make_fragment(10, 2).followed_by(make_fragment(12, 3))
    assert joined.num_steps == 5
    assert times(joined.obs) == [10, 11, 12, 13, 14, 15]
    assert times(joined.actions) == [10, 11, 12, 13, 14]
    assert times(joined.rewards) == [10, 11, 12, 13, 14]
    assert joined.valid.shape == joined.terminated.shape == joined.truncated.shape == (5, 2)


def test_at_a_border_the_outputs_of_the_weights_that_acted_there_stay() -> None:
    earlier = replace(make_fragment(10, 2), outputs={"values": np.array([[1, 1], [2, 2], [3, 3]])})
    later = replace(make_fragment(12, 2), outputs={"values": np.array([[30, 30], [40, 40], [50, 50]])})
    joined = earlier.followed_by(later)
    assert times(joined.outputs["values"]) == [1, 2, 30, 40, 50]
    assert times(joined.since(3).outputs["values"]) == [40, 50]
    assert make_fragment(10, 2).followed_by(make_fragment(12, 2)).outputs == {}


class FailingRecorder:
    """Refuses whatever it is asked to do, but stops."""

    def record(self, num_steps_sampled: int) -> Recording:
        raise AssertionError("this env fails")

    def set_weights(self, version: int, weights: Weights) -> None:
        raise KeyError("no such layer")

    def set_filter(self, moments: Moments) -> None:
        raise ValueError("not of this shape")

    def state(self) -> dict[str, Any] | None:
        return None

    def load(self, state: Mapping[str, Any]) -> bool:
        return False

    def stop(self) -> None:
        return None


class PatientRecorder(FailingRecorder):
    """Refuses weights and filters, and records nothing."""

    def record(self, num_steps_sampled: int) -> Recording:
        return None  # type: ignore[return-value]


def test_weights_that_the_thread_refuses_are_an_error_of_the_next_fragment() -> None:
    ahead = RecordingAhead(PatientRecorder())
    ahead.set_weights(1, {})
    with pytest.raises(KeyError, match="no such layer"):
        ahead.record(0)
    ahead.stop()


def test_a_filter_that_the_thread_refuses_is_an_error_of_the_next_fragment() -> None:
    ahead = RecordingAhead(PatientRecorder())
    ahead.set_filter(Moments.none((2,)))
    with pytest.raises(ValueError, match="not of this shape"):
        ahead.record(0)
    ahead.stop()


def test_a_fragment_that_fails_is_an_error_of_its_own_record() -> None:
    ahead = RecordingAhead(FailingRecorder())
    with pytest.raises(AssertionError, match="this env fails"):
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
