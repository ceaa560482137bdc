"""Milestones: which one a time has passed, and which one is next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.search.trial_scheduler import Milestones


@pytest.mark.parametrize(
    ("time", "passed", "after"), [(0, 0, 100), (99.9, 0, 100), (100, 100, 200), (250, 200, 300), (300, 300, 400)]
)
def test_milestones_without_factor_are_multiples(time: float, passed: float, after: float) -> None:
    milestones = Milestones("timesteps_total", 100)
    assert (milestones.passed_by(time), milestones.after(time)) == (passed, after)


@given(st.integers(1, 10**6), st.sampled_from([1.5, 2.0, 3.0, 4.0, 10.0]), st.integers(0, 15))
def test_milestones_with_factor_grow_geometrically(first: int, factor: float, number: int) -> None:
    milestones, at = Milestones("timesteps_total", first, factor), first * factor**number
    assert milestones.passed_by(at) == at
    assert milestones.after(at) == first * factor ** (number + 1)
    assert milestones.passed_by(at * 0.999) == (first * factor ** (number - 1) if number else 0)
    assert milestones.after(at * 0.999) == at
    assert milestones.passed(at * 0.999, at)
    assert not milestones.passed(at, at * 1.001)
