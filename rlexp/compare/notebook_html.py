"""HTML of results for notebooks: a short table and the curves of trials, in colours for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from rlexp.compare.curve import tick_label, ticks
from rlexp.sample_batch import Array

_COLOURS: Final = ("#3d8fc4", "#d9822b", "#2a9d6f", "#c06aa5", "#a58a1f", "#c8574f")
MOST_CURVES: Final = len(_COLOURS)
"""More curves than these cannot be told apart."""
_WIDTH: Final = 460
_HEIGHT: Final = 180
_LEFT: Final = 48
_BOTTOM: Final = 30
_TOP: Final = 8
_MOST_TICKS: Final = 5
_MOST_POINTS: Final = 300
_NAME: Final = "margin-right:1em;white-space:nowrap"
_CELL: Final = "padding:2px 10px;text-align:left;white-space:nowrap"


@dataclass(frozen=True)
class NotebookCurve:
    """One curve: ``x`` rises, and values that are not finite are left out."""

    name: str
    x: Array
    y: Array


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, each of them escaped."""
    head = "".join(f'<th style="{_CELL}">{escape(column)}</th>' for column in columns)
    lines = ("".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_curves(curves: Sequence[NotebookCurve], x_label: str, y_label: str) -> str:
    """Return the curves as SVG with a legend below; empty if none has two points."""
    drawn = [curve for curve in map(_finite, curves[:MOST_CURVES]) if len(curve.x) > 1]
    if not drawn:
        return ""
    x_limits, y_limits = _limits([curve.x for curve in drawn]), _limits([curve.y for curve in drawn])
    lines = "".join(_line(curve, x_limits, y_limits, colour) for curve, colour in zip(drawn, _COLOURS, strict=False))
    axes = "".join(_axes(x_limits, y_limits))
    names = f"{escape(y_label)} over {escape(x_label)}"
    label = f'<text x="{_WIDTH - 6}" y="{_HEIGHT - 2}" text-anchor="end" fill="currentColor">{escape(x_label)}</text>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'role="img" aria-label="{names}" style="font:11px sans-serif;max-width:100%">{axes}{lines}{label}</svg>'
    )
    left_out = len(curves) - MOST_CURVES
    more = f"<span>and {left_out} more</span>" if left_out > 0 else ""
    legend = "".join(
        f'<span style="{_NAME}"><span style="color:{colour}">&#9632;</span> {escape(curve.name)}</span>'
        for curve, colour in zip(drawn, _COLOURS, strict=False)
    )
    return f"<div>{svg}</div><div>{escape(y_label)}: {legend}{more}</div>"


def _finite(curve: NotebookCurve) -> NotebookCurve:
    """Return a curve without gaps, and with so few points that a page stays small."""
    known = np.flatnonzero(np.isfinite(curve.x) & np.isfinite(curve.y))
    if len(known) > _MOST_POINTS:
        known = known[np.linspace(0, len(known) - 1, _MOST_POINTS).astype(int)]
    return NotebookCurve(curve.name, curve.x[known], curve.y[known])


def _limits(arrays: Sequence[Array]) -> tuple[float, float]:
    low, high = min(float(each.min()) for each in arrays), max(float(each.max()) for each in arrays)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _line(curve: NotebookCurve, x_limits: tuple[float, float], y_limits: tuple[float, float], colour: str) -> str:
    x, y = np.interp(curve.x, x_limits, _ACROSS), np.interp(curve.y, y_limits, _UPWARD)
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _axes(x_limits: tuple[float, float], y_limits: tuple[float, float]) -> Iterator[str]:
    (left, right), (bottom, top) = _ACROSS, _UPWARD
    for value in ticks(*y_limits, _MOST_TICKS):
        y = float(np.interp(value, y_limits, _UPWARD))
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="currentColor" stroke-opacity="0.15"/>'
        yield _number(left - 6, y + 4, value, "end")
    for value in ticks(*x_limits, _MOST_TICKS):
        yield _number(float(np.interp(value, x_limits, _ACROSS)), bottom + 14, value, "middle")
    yield f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'


def _number(x: float, y: float, value: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{tick_label(value)}</text>'


_ACROSS: Final = (_LEFT, _WIDTH - 12)
_UPWARD: Final = (_HEIGHT - _BOTTOM, _TOP)
