"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.tuning import figures


@given(st.lists(st.floats(-1e9, 1e9)), st.integers(1, 30))
def test_a_sparkline_has_one_block_a_stretch_and_spans_low_to_high(values: list[float], width: int) -> None:
    line = figures.sparkline(values, width)
    assert len(line) == min(len(values), width)
    if len(values) <= width and len(set(values)) > 1:
        assert line[values.index(min(values))] == "▁"
        assert line[values.index(max(values))] == "█"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (figures.count(1234567.8), "1,234,568"),
        (figures.count(None), "-"),
        (figures.count(True), "-"),
        (figures.percent(0.999), "99 %"),
        (figures.percent(0.29), "29 %"),
        (figures.percent(1.0), "100 %"),
        (figures.duration(59.9), "0:00:59"),
        (figures.duration(90_061), "1d 1:01:01"),
        (figures.duration(float("inf")), "-"),
        (figures.bar(0.5, 4), "██░░"),
        (figures.exact(2_000_000.0), "2,000,000"),
        (figures.exact(0.95), "0.95"),
        (figures.score(486.74), "486.7"),
        (figures.score(-20.98), "-20.98"),
        (figures.score(9.0), "9.0"),
        (figures.score(12_345.6), "12,346"),
        (figures.score(0), "0.0"),
        (figures.score(1e-7), "1e-07"),
        (figures.score(10**400), "-"),
        (figures.levels([0.0, 0.5, 1.0, 2.0]), "▁▅██"),
        (figures.one_line("a\x1b[2Jb\nc"), "a [2Jb"),
        (figures.one_line(""), ""),
        (figures.middle_cut("abcdefghij", 7), "ab…ghij"),
    ],
)
def test_figures_read_at_a_glance(shown: str, expected: str) -> None:
    assert shown == expected


def test_rewards_that_differ_look_different() -> None:
    assert figures.score(0.8727) == "0.8727"
    assert figures.score(0.8841) == "0.8841"


@pytest.mark.parametrize(("largest", "digits"), [(12_000, 0), (500, 1), (47, 2), (5, 3), (0.3, 4), (1e-12, 6), (0, 1)])
def test_small_scores_get_more_digits(largest: float, digits: int) -> None:
    assert figures.digits_for(largest) == digits
