"""The thread that records ahead, around a recorder that does what a test tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.recorder import Recording, RecordingAhead


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
