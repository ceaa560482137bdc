"""The two pictures of a report: curves with their interval bands, and final scores seed by seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlexp.number_format import score
from rlexp.results.comparison import ComparedGroup, Comparison
from rlexp.results.report.frame import Frame, limits
from rlexp.results.report.markup import Markup, element
from rlexp.results.ticks import Unit, amount, unit_of

COLOURS = 8
"""How many the style sheet has: ``c0`` to ``c7``; later groups are dashed as well."""
_DASHES = (None, "7 4", "2 3", "9 3 2 3")
_WIDTH = 900
_CURVES_HEIGHT = 400
_ROW_HEIGHT = 34
_SCORES_MARGIN = 56
_LINE_HEIGHT = 14
_POINTS = 25
"""Along each curve; between them the curve is read off."""


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
        *(_line(frame, index, group, unit.size) for index, group in enumerate(comparison.groups)),
        *_ends(frame, comparison, unit.size),
        *(mark for index in range(len(comparison.groups)) for mark in _points(frame, index, comparison, unit)),
    )


def scores(comparison: Comparison) -> Markup:
    """Return a row per group: a dot for each seed's final score, and the IQM with its interval."""
    groups = comparison.groups
    every = [np.array([trial.score for trial in group.trials]) for group in groups]
    # As wide as the curves are high: dots that are apart there by noise alone are not apart here.
    trained = [values for group in groups for values in (group.band.low, group.band.high)]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    frame = Frame(_WIDTH, height, limits([*every, *trained], 0.04), (len(groups) - 0.5, -0.5))
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


def _line(frame: Frame, index: int, group: ComparedGroup, unit: float) -> Markup:
    points = frame.points(group.band.x / unit, group.band.middle)
    dashes = _DASHES[index // COLOURS % len(_DASHES)]
    class_ = f"curve {colour_class(index)}"
    return element("polyline", element("title", group.name), points=points, class_=class_, stroke_dasharray=dashes)


def _ends(frame: Frame, comparison: Comparison, unit: float) -> Iterator[Markup]:
    """Yield each group's letter and last value where its curve ends; those that would overlap are moved apart."""
    tops = {index: float(frame.y(group.band.middle[-1])) for index, group in enumerate(comparison.groups)}
    lowest = float("-inf")
    for index in sorted(tops, key=lambda index: tops[index]):
        group, lowest = comparison.groups[index], max(tops[index], lowest + _LINE_HEIGHT)
        left = float(frame.x(group.band.x[-1] / unit))
        text = f"{group.mark} {score(group.band.middle[-1])}"
        class_ = f"mark {colour_class(index)}"
        yield element("text", text, x=f"{left + 6:.1f}", y=f"{lowest:.1f}", dy="0.32em", class_=class_)


def _points(frame: Frame, index: int, comparison: Comparison, unit: Unit) -> Iterator[Markup]:
    """Yield points along a curve that show, under the pointer, what it says there."""
    group, band = comparison.groups[index], comparison.groups[index].band
    for place in np.linspace(0, len(band.x) - 1, _POINTS).round().astype(int):
        x, middle, low, high = (float(values[place]) for values in (band.x, band.middle, band.low, band.high))
        interval = f" [{score(low)}, {score(high)}]" if len(group.trials) > 1 else ""
        at = f"{amount(x / unit.size, comparison.axis)} {unit.label}"
        title = element("title", f"{group.mark} {group.name}\n{at}: {score(middle)}{interval}")
        left, top = f"{float(frame.x(x / unit.size)):.1f}", f"{float(frame.y(middle)):.1f}"
        yield element("circle", title, cx=left, cy=top, r=6, class_=f"point {colour_class(index)}")


def _score_row(frame: Frame, index: int, group: ComparedGroup) -> Iterator[Markup]:
    top = f"{float(frame.y(index)):.1f}"
    yield element("text", group.mark, x=40, y=top, dy="0.32em", class_=f"mark {colour_class(index)}")
    for trial in group.trials:
        title = element("title", f"{group.name}, seed {trial.folder.seed}: {score(trial.score)}")
        at = f"{float(frame.x(trial.score)):.1f}"
        yield element("circle", title, cx=at, cy=top, r=5, class_=f"seed {colour_class(index)}")
    if group.iqm.interval is not None:
        left, right = (f"{float(frame.x(end)):.1f}" for end in group.iqm.interval)
        yield element("line", x1=left, x2=right, y1=top, y2=top, class_=f"interval {colour_class(index)}")
    at, middle = f"{float(frame.x(group.iqm.value)):.1f}", float(frame.y(index))
    title = element("title", f"{group.name}: IQM {score(group.iqm.value)}")
    yield element("line", title, x1=at, x2=at, y1=middle - 10, y2=middle + 10, class_=f"iqm {colour_class(index)}")
