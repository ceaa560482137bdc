"""Figures, curves and single points of a tag, compared with slow simple models over all points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.compare.event_files import POINT, AtStep, Series, Summary
from rlexp.compare.event_files.gathering import CELLS, FEWEST_FOR_SLOPE, Curve
from rlexp.sample_batch import Array

VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))


def points(steps: Array, values: Array) -> Array:
    made = np.zeros(len(steps), POINT)
    made["step"], made["value"], made["wall_time"] = steps, values, np.arange(len(steps))
    return made


@st.composite
def batches(draw: st.DrawFn) -> list[Array]:
    """Points in batches of any size: steps mostly rise, values are mostly finite."""
    values = np.array(draw(st.lists(VALUES, min_size=1, max_size=60)))
    count = draw(st.integers(1, 3000))
    steps = np.cumsum(np.resize(draw(st.lists(st.integers(-1, 1000), min_size=1, max_size=5)), count))
    edges = sorted(draw(st.lists(st.integers(1, count), max_size=6)))
    pieces = np.split(points(steps, np.resize(values, count)), edges)
    return [piece for piece in pieces if len(piece)]


@settings(deadline=None)
@given(batches())
def test_figures_match_all_points_at_once(pieces: list[Array]) -> None:
    summary, everything = Summary(), np.concatenate(pieces)
    for piece in pieces:
        summary.take(piece)
    figures, values = summary.figures(), everything["value"]
    assert figures.points == len(everything)
    assert (figures.first_step, figures.last_step) == (everything["step"][0], everything["step"][-1])
    assert (figures.first_wall_time, figures.last_wall_time) == (0, everything["wall_time"][-1])
    np.testing.assert_equal(figures.last, values[-1])
    if np.isnan(values).all():
        assert (figures.max, figures.max_step, figures.min, figures.min_step) == (None, None, None, None)
    else:
        assert (figures.max, figures.min) == (np.nanmax(values), np.nanmin(values))
        assert figures.max_step == everything["step"][values == np.nanmax(values)][0]
        assert figures.min_step == everything["step"][values == np.nanmin(values)][0]


@settings(deadline=None)
@given(batches())
def test_slope_is_over_last_tenth(pieces: list[Array]) -> None:
    curve, everything = Curve(), np.concatenate(pieces)
    for piece in pieces:
        curve.add(piece["step"], piece["value"])
    slope, _ = curve.slope()
    wanted = max(math.ceil(len(everything) / 10), FEWEST_FOR_SLOPE)
    width = math.ceil(len(everything) / CELLS) * 2
    slopes = [least_squares(everything[-tail:]) for tail in range(wanted, wanted + width + 1)]
    if len(everything) <= CELLS:
        slopes = slopes[:1]
    close = [
        other is None if slope is None else other is not None and math.isclose(slope, other, rel_tol=1e-6, abs_tol=1e-6)
        for other in slopes
    ]
    assert any(close), (slope, slopes)


def least_squares(tail: Array) -> float | None:
    """The slope by the textbook."""
    known = tail[np.isfinite(tail["value"])]
    if len(set(known["step"].tolist())) < 2:
        return None
    x = known["step"] - known["step"].astype(float).mean()
    return float((x * (known["value"] - known["value"].mean())).sum() / (x * x).sum())


@settings(deadline=None)
@given(batches(), st.integers(1, 60))
def test_curve_means_are_of_stretches(pieces: list[Array], width: int) -> None:
    curve, values = Curve(), np.concatenate(pieces)["value"]
    for piece in pieces:
        curve.add(piece["step"], piece["value"])
    means = curve.means(width)
    assert len(means) <= width
    known = np.isfinite(values)
    if not known.any():
        assert all(map(math.isnan, means))
        return
    assert values[known].min() - 1e-6 <= np.nanmin(means)
    assert np.nanmax(means) <= values[known].max() + 1e-6
    if width == 1:
        assert math.isclose(means[0], values[known].mean(), rel_tol=1e-9, abs_tol=1e-6)
    if len(values) <= width:
        np.testing.assert_array_equal(means, np.where(known, values, math.nan))


def test_long_curve_has_shape_of_points() -> None:
    curve = Curve()
    for start in range(0, 100_000, 700):
        steps = np.arange(start, min(start + 700, 100_000))
        curve.add(steps, np.abs(steps - 50_000.0))
    assert curve.points == 100_000
    np.testing.assert_allclose(curve.means(5), [40_000, 20_000, 5_000, 20_000, 40_000], atol=1500)
    slope, over = curve.slope()
    assert slope == pytest.approx(1)
    assert 10_000 <= over <= 10_000 + 2 * 100_000 / CELLS


def test_slope_of_long_curve_is_over_reported_points() -> None:
    rng = np.random.default_rng(0)
    everything = points(np.cumsum(rng.integers(1, 9, 20_000)), rng.normal(size=20_000))
    curve = Curve()
    for piece in np.split(everything, np.sort(rng.integers(1, 20_000, 50))):
        if len(piece):
            curve.add(piece["step"], piece["value"])
    slope, over = curve.slope()
    assert 2000 <= over <= 2000 + 2 * 20_000 / CELLS
    assert slope == pytest.approx(least_squares(everything[-over:]), rel=1e-9)


@settings(deadline=None)
@given(batches(), st.integers(-10, 5000))
def test_at_step_matches_slow_model(pieces: list[Array], step: int) -> None:
    at, model = AtStep(step), None
    for piece in pieces:
        at.take(piece)
        for point in piece:
            if point["step"] <= step and (model is None or point["step"] >= model["step"]):
                model = point
    found = at.points()
    assert len(found) == (model is not None)
    if model is not None:
        assert [found[0][name] for name in ("step", "wall_time")] == [model[name] for name in ("step", "wall_time")]


@settings(deadline=None)
@given(batches())
def test_series_has_all_points(pieces: list[Array]) -> None:
    series, everything = Series(), np.concatenate(pieces)
    for piece in pieces:
        series.take(piece)
    for name in ("step", "wall_time", "value"):
        np.testing.assert_array_equal(series.points()[name], everything[name])
