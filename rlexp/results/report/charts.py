"""The two pictures of a report: curves with their interval bands, and final scores seed by seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlexp.results.comparison import ComparedGroup, Comparison
from rlexp.results.report.frame import Frame, limits
from rlexp.results.report.markup import Markup, element
from rlexp.results.ticks import unit_of

COLOURS = 8
"""How many the style sheet has: ``c0`` to ``c7``; later groups are dashed as well."""
_DASHES = (None, "7 4", "2 3", "9 3 2 3")
_WIDTH = 900
_CURVES_HEIGHT = 400
_ROW_HEIGHT = 34
_SCORES_MARGIN = 56


def colour_class(index: int) -> str:
    """Return the class of the style sheet that gives group number ``index`` its colour."""
    return f"c{index % COLOURS}"


def curves(comparison: Comparison) -> Markup:
    """Return the IQM over seeds of each group along the axis, with its pointwise interval."""
    bands = [group.band for group in comparison.groups]
    unit = unit_of(comparison.axis, max(float(band.x[-1]) for band in bands))
    y_limits = limits((values for band in bands for values in (band.low, band.high)), 0.04)
    x_limits = limits(band.x / unit.size for band in bands)
    frame = Frame(_WIDTH, _CURVES_HEIGHT, x_limits, y_limits)
    stretch = comparison.window
    ends = [] if stretch is None else [np.clip(x / unit.size, *x_limits) for x in (stretch.start, stretch.end)]
    return frame.picture(
        f"{comparison.metric} over {unit.label}",
        *([_stretch(frame, *ends)] if ends else []),
        *frame.y_axis(),
        *frame.x_axis(unit.label),
        *(_area(frame, index, group, unit.size) for index, group in enumerate(comparison.groups)),
        *(mark for index, group in enumerate(comparison.groups) for mark in _line(frame, index, group, unit.size)),
    )


def scores(comparison: Comparison) -> Markup:
    """Return a row per group: a dot for each seed's final score, and the IQM with its interval."""
    groups = comparison.groups
    every = [np.array([trial.score for trial in group.trials]) for group in groups]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    frame = Frame(_WIDTH, height, limits(every, 0.06), (len(groups) - 0.5, -0.5))
    rows = (mark for index, group in enumerate(groups) for mark in _score_row(frame, index, group))
    return frame.picture(f"final {comparison.metric} by seed", *frame.x_axis(comparison.metric), *rows)


def _stretch(frame: Frame, start: float, end: float) -> Markup:
    left, right = float(frame.x(start)), float(frame.x(end))
    top, bottom = float(frame.y(frame.y_limits[1])), float(frame.y(frame.y_limits[0]))
    title = element("title", "final scores are taken here")
    return element(
        "rect", title, x=f"{left:.1f}", width=f"{right - left:.1f}", y=top, height=bottom - top, class_="stretch"
    )


def _area(frame: Frame, index: int, group: ComparedGroup, unit: float) -> Markup:
    band = group.band
    x = np.concatenate([band.x, band.x[::-1]]) / unit
    outline = frame.points(x, np.concatenate([band.high, band.low[::-1]]))
    return element("polygon", points=outline, class_=f"band {colour_class(index)}")


def _line(frame: Frame, index: int, group: ComparedGroup, unit: float) -> Iterator[Markup]:
    x, y = group.band.x / unit, group.band.middle
    dashes = _DASHES[index // COLOURS % len(_DASHES)]
    title, colour = element("title", group.name), colour_class(index)
    yield element("polyline", title, points=frame.points(x, y), class_=f"curve {colour}", stroke_dasharray=dashes)
    left, top = float(frame.x(x[-1])), float(frame.y(y[-1]))
    yield element("text", group.mark, x=f"{left + 5:.1f}", y=f"{top:.1f}", dy="0.32em", class_=f"mark {colour}")


def _score_row(frame: Frame, index: int, group: ComparedGroup) -> Iterator[Markup]:
    top = f"{float(frame.y(index)):.1f}"
    yield element("text", group.mark, x=40, y=top, dy="0.32em", class_=f"mark {colour_class(index)}")
    for trial in group.trials:
        title = element("title", f"{group.name}, seed {trial.folder.seed}: {trial.score:,.4g}")
        at = f"{float(frame.x(trial.score)):.1f}"
        yield element("circle", title, cx=at, cy=top, r=5, class_=f"seed {colour_class(index)}")
    if group.iqm.interval is not None:
        left, right = (f"{float(frame.x(end)):.1f}" for end in group.iqm.interval)
        yield element("line", x1=left, x2=right, y1=top, y2=top, class_=f"interval {colour_class(index)}")
    at, middle = f"{float(frame.x(group.iqm.value)):.1f}", float(frame.y(index))
    title = element("title", f"{group.name}: IQM {group.iqm.value:,.4g}")
    yield element("line", title, x1=at, x2=at, y1=middle - 10, y2=middle + 10, class_=f"iqm {colour_class(index)}")
