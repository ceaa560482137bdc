"""Curves from the lines of ``result.json``, also after a crash or a resume; bands of groups; goals.

Ticks, units and labels of an axis.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.compare.curve import (
    Curve,
    CurveAxis,
    ReachedScore,
    Unit,
    amount,
    band,
    reached,
    read_curve,
    tick_label,
    ticks,
    unit_of,
)
from tests.lab.run_folders import row


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
    assert unit_of(CurveAxis.TIME, 100.0) == Unit("seconds", 1.0)
    assert unit_of(CurveAxis.TIME, 1_000.0) == Unit("minutes", 60.0)
    assert unit_of(CurveAxis.TIME, 100_000.0) == Unit("hours", 3600.0)
    assert unit_of(CurveAxis.STEPS, 100_000.0) == Unit("env steps", 1.0)


def test_amounts_in_sentences() -> None:
    assert (amount(12_345.6, CurveAxis.STEPS), amount(90.4, CurveAxis.STEPS), amount(0, CurveAxis.STEPS)) == (
        "12,346",
        "90",
        "0",
    )
    assert (amount(12_345.6, CurveAxis.TIME), amount(2.0666, CurveAxis.TIME)) == ("12,346", "2.07")


REWARD = "episode_reward_mean"


def curve(folder: Path, lines: list[str], metric: str = REWARD) -> Curve:
    (folder / "result.json").write_text("".join(f"{line}\n" for line in lines))
    return read_curve(folder, metric)


def test_rows_become_points(tmp_path: Path) -> None:
    read = curve(tmp_path, [json.dumps(row(1, 20.0)), json.dumps(row(2, 30.5))])
    assert (read.steps.tolist(), read.seconds.tolist(), read.values.tolist()) == ([100, 200], [2.0, 4.0], [20.0, 30.5])
    assert read.along(CurveAxis.STEPS) is read.steps
    assert read.along(CurveAxis.TIME) is read.seconds
    assert read.damaged_lines == 0


def test_metrics_have_flat_names(tmp_path: Path) -> None:
    rows = [row(1, 1.0), row(2, 1.0, **{"info/learner/loss": 7.0})]
    assert curve(tmp_path, list(map(json.dumps, rows)), "info/learner/loss").values.tolist() == [1.0, 7.0]


@pytest.mark.parametrize("damage", ['"x": ' + "[" * 900 + "]" * 900, '"timesteps_total": 100'], ids=["deep", "twice"])
def test_rows_nested_too_deep_or_with_repeated_key_are_damaged(tmp_path: Path, damage: str) -> None:
    good = json.dumps(row(1, 20.0))
    read = curve(tmp_path, [good, f"{json.dumps(row(2, 30.0))[:-1]}, {damage}}}"])
    assert (read.values.tolist(), read.damaged_lines) == ([20.0], 1)


@pytest.mark.parametrize("missing", ["null", "NaN", "Infinity", "true", '"12"', "[1]", "1" + "0" * 400])
def test_values_that_are_not_numbers_are_missing(tmp_path: Path, missing: str) -> None:
    line = json.dumps(row(1, 0.0)).replace('"episode_reward_mean": 0.0', f'"episode_reward_mean": {missing}')
    read = curve(tmp_path, [line, json.dumps(row(2, 5.0))])
    assert (read.steps.tolist(), read.damaged_lines) == ([200], 0)


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(row(2, 1.0))[:50],
        "[]",
        "3",
        '"text"',
        "{}",
        '{"timesteps_total": 3}',
        '{"timesteps_total": "many", "time_total_s": 1}',
        "[" * 20_000,
        "\0\0\0",
        "{'timesteps_total': 3}",
        "9" * 5_000,
    ],
)
def test_damaged_lines_are_skipped_and_counted(tmp_path: Path, line: str) -> None:
    read = curve(tmp_path, [json.dumps(row(1, 1.0)), line, "", json.dumps(row(3, 3.0))])
    assert (read.steps.tolist(), read.damaged_lines) == ([100, 300], 1)


def test_line_that_is_not_utf_8_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\n" + json.dumps(row(1, 1.0)).encode())
    read = read_curve(tmp_path, REWARD)
    assert (read.steps.tolist(), read.damaged_lines) == ([100], 1)


def test_trial_without_results_has_empty_curve(tmp_path: Path) -> None:
    read = read_curve(tmp_path, REWARD)
    assert (len(read.steps), len(read.values), read.damaged_lines) == (0, 0, 0)


def test_resumed_trial_replaces_rows_after_checkpoint(tmp_path: Path) -> None:
    rows = [row(1, 1.0), row(2, 2.0), row(3, 3.0), row(2, 20.0), row(3, None), row(4, 40.0)]
    read = curve(tmp_path, list(map(json.dumps, rows)))
    assert (read.steps.tolist(), read.values.tolist()) == ([100, 200, 400], [1.0, 20.0, 40.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=40))
def test_steps_rise_and_later_rows_replace_earlier(
    tmp_path_factory: pytest.TempPathFactory, iterations: list[int]
) -> None:
    rows = [row(iteration, float(place)) for place, iteration in enumerate(iterations)]
    read = curve(tmp_path_factory.mktemp("trial"), list(map(json.dumps, rows)))
    # A row counts unless a later one is at its steps or before.
    kept = [place for place, steps in enumerate(iterations) if all(later > steps for later in iterations[place + 1 :])]
    assert read.values.tolist() == [float(place) for place in kept]
    assert read.steps.tolist() == [100 * iterations[place] for place in kept]


def test_seconds_never_decrease(tmp_path: Path) -> None:
    rows = [row(1, 1.0, time_total_s=9.0), row(2, 2.0, time_total_s=4.0), row(3, 3.0, time_total_s=12.0)]
    assert curve(tmp_path, list(map(json.dumps, rows))).seconds.tolist() == [9.0, 9.0, 12.0]


def made(steps: list[float], values: list[float], seconds: list[float] | None = None) -> Curve:
    return Curve(np.array(steps), np.array(seconds if seconds is not None else steps), np.array(values))


def test_band_covers_common_range_and_interpolates() -> None:
    seeds = [made([0, 100, 200], [0.0, 10.0, 20.0]), made([50, 300], [0.0, 50.0])]
    drawn = band(seeds, CurveAxis.STEPS, np.random.default_rng(0))
    assert (drawn.x[0], drawn.x[-1]) == (50.0, 200.0)
    assert drawn.middle[0] == pytest.approx((5.0 + 0.0) / 2)
    assert drawn.middle[-1] == pytest.approx((20.0 + 30.0) / 2)
    assert drawn.low[-1] == pytest.approx(20.0)
    assert drawn.high[-1] == pytest.approx(30.0)


def test_band_of_single_row() -> None:
    drawn = band([made([100], [7.0])], CurveAxis.STEPS, np.random.default_rng(0))
    assert set(drawn.x) == {100.0}
    assert set(drawn.middle) == {7.0}


def test_band_without_common_range_is_at_first_end() -> None:
    drawn = band([made([10, 20], [1.0, 1.0]), made([50, 60], [3.0, 3.0])], CurveAxis.STEPS, np.random.default_rng(0))
    assert set(drawn.x) == {20.0}
    assert set(drawn.middle) == {2.0}


def test_reached_is_first_row_at_goal() -> None:
    ran = made([100, 200, 300], [1.0, 5.0, 4.0], [2.0, 3.0, 4.0])
    assert reached(ran, 5.0) == ReachedScore(200.0, 3.0)
    assert reached(ran, 1.0) == ReachedScore(100.0, 2.0)
    assert reached(ran, 5.1) == ReachedScore(math.inf, math.inf)
    assert reached(ran, 4.5, lower_is_better=True) == ReachedScore(100.0, 2.0)
    assert reached(ran, 0.5, lower_is_better=True) == ReachedScore(math.inf, math.inf)
