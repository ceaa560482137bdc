from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.metrics.bootstrap import bootstrap_interval


def test_of_equal_values_it_is_that_value() -> None:
    assert bootstrap_interval(np.full(10, 3.0), np.random.default_rng(0)) == (3.0, 3.0)


def test_of_many_normal_values_it_is_the_textbooks_interval() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, size=400)
    low, high = bootstrap_interval(values, np.random.default_rng(2))
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_less_confidence_is_a_narrower_interval() -> None:
    values = np.arange(50.0)
    low, high = bootstrap_interval(values, np.random.default_rng(0))
    narrow_low, narrow_high = bootstrap_interval(values, np.random.default_rng(0), confidence=0.5)
    assert low < narrow_low < values.mean() < narrow_high < high


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.arange(20.0)
    first, again = (bootstrap_interval(values, np.random.default_rng(5)) for _ in range(2))
    assert first == again
