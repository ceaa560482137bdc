"""Ticks, units and labels of an axis."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.compare.curve import Axis, Unit, amount, tick_label, ticks, unit_of


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 100, 6, [0, 20, 40, 60, 80, 100]),
        (5, 145, 6, [25, 50, 75, 100, 125]),
        (-1, 1, 5, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, 5, [3]),
        (980, 24_000, 5, [5_000, 10_000, 15_000, 20_000]),
    ],
)
def test_ticks_by_hand(low: float, high: float, most: int, expected: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9), st.integers(2, 12))
def test_ticks_are_few_even_and_inside(low: float, width: float, most: int) -> None:
    high = low + width
    found = ticks(low, high, most)
    assert len(found) <= most
    slack = (high - low) * 1e-6 + abs(low) * 1e-12
    assert all(low - slack <= value <= high + slack for value in found)
    gaps = [after - before for before, after in pairwise(found)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps) if gaps else [], rel=1e-3, abs=1e-6 * width)


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "0"), (250, "250"), (1500, "1.5k"), (2e7, "20M"), (0.02, "0.02"), (-3000, "-3k"), (1.5e9, "1.5G")],
)
def test_tick_labels_are_short(value: float, label: str) -> None:
    assert tick_label(value) == label


def test_unit_of_time_fits_range() -> None:
    assert unit_of(Axis.TIME, 100.0) == Unit("seconds", 1.0)
    assert unit_of(Axis.TIME, 1_000.0) == Unit("minutes", 60.0)
    assert unit_of(Axis.TIME, 100_000.0) == Unit("hours", 3600.0)
    assert unit_of(Axis.STEPS, 100_000.0) == Unit("env steps", 1.0)


def test_amounts_in_sentences() -> None:
    assert (amount(12_345.6, Axis.STEPS), amount(90.4, Axis.STEPS), amount(0, Axis.STEPS)) == ("12,346", "90", "0")
    assert (amount(12_345.6, Axis.TIME), amount(2.0666, Axis.TIME)) == ("12,346", "2.07")
