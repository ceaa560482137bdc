"""Curves of unequal trials: where final scores are taken, what is drawn, when a goal was reached."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.results.axis import Axis
from rlexp.results.curve import Curve, Reached, band, reached
from rlexp.results.scoring import Window, final_window


def curve(steps: list[float], values: list[float], seconds: list[float] | None = None) -> Curve:
    return Curve(np.array(steps), np.array(seconds if seconds is not None else steps), np.array(values))


def test_the_shortest_trial_decides_where_scores_are_taken() -> None:
    curves = [curve([100, 1000], [0, 1], [5, 60]), curve([100, 2000], [0, 1], [4, 50])]
    assert final_window(curves, Axis.STEPS) == Window(900.0, 1000.0)
    assert final_window(curves, Axis.TIME) == Window(45.0, 50.0)


def test_a_group_is_drawn_where_all_of_its_seeds_are_and_between_their_rows() -> None:
    seeds = [curve([0, 100, 200], [0.0, 10.0, 20.0]), curve([50, 300], [0.0, 50.0])]
    drawn = band(seeds, Axis.STEPS, np.random.default_rng(0))
    assert (drawn.x[0], drawn.x[-1]) == (50.0, 200.0)
    assert drawn.middle[0] == pytest.approx((5.0 + 0.0) / 2)
    assert drawn.middle[-1] == pytest.approx((20.0 + 30.0) / 2)
    assert drawn.low[-1] == pytest.approx(20.0)
    assert drawn.high[-1] == pytest.approx(30.0)


def test_a_band_can_be_drawn_of_a_single_row() -> None:
    drawn = band([curve([100], [7.0])], Axis.STEPS, np.random.default_rng(0))
    assert set(drawn.x) == {100.0}
    assert set(drawn.middle) == {7.0}


def test_seeds_that_never_ran_at_the_same_time_are_drawn_where_the_first_ended() -> None:
    drawn = band([curve([10, 20], [1.0, 1.0]), curve([50, 60], [3.0, 3.0])], Axis.STEPS, np.random.default_rng(0))
    assert set(drawn.x) == {20.0}
    assert set(drawn.middle) == {2.0}


def test_a_goal_is_reached_at_the_first_row_that_has_it() -> None:
    ran = curve([100, 200, 300], [1.0, 5.0, 4.0], [2.0, 3.0, 4.0])
    assert reached(ran, 5.0) == Reached(200.0, 3.0)
    assert reached(ran, 1.0) == Reached(100.0, 2.0)
    assert reached(ran, 5.1) == Reached(math.inf, math.inf)
