"""The frame of a chart: from numbers to places in the picture, and the axes around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rlexp.results.report.markup import Markup, element
from rlexp.results.ticks import tick_label, ticks
from rlexp.sample_batch import Array

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 72, 10, 42
_X_TICKS, _Y_TICKS = 9, 6
_BESIDE_ONE_VALUE = 1e-6
"""The room around a single value, as a share of it: half a unit is nothing beside a very large one."""


@dataclass(frozen=True)
class Frame:
    """A chart of ``width`` by ``height`` units of SVG."""

    width: int
    height: int
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]

    def x(self, values: Array | float) -> Array:
        """Return where ``values`` lie from the left."""
        return _placed(values, self.x_limits, (_LEFT, self.width - _RIGHT))

    def y(self, values: Array | float) -> Array:
        """Return where ``values`` lie from the top."""
        return _placed(values, self.y_limits, (self.height - _BOTTOM, _TOP))

    def points(self, x: Array, y: Array) -> str:
        """Return a curve as SVG writes points."""
        return " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(self.x(x), self.y(y), strict=True))

    def picture(self, label: str, *content: Markup) -> Markup:
        """Return the chart; ``label`` is what it is called for those who cannot see it."""
        return element("svg", *content, viewBox=f"0 0 {self.width} {self.height}", role="img", aria_label=label)

    def x_axis(self, label: str) -> Iterator[Markup]:
        """Yield ticks, numbers and the name of the horizontal axis."""
        bottom = self.height - _BOTTOM
        for value in ticks(*self.x_limits, _X_TICKS):
            at = f"{float(self.x(value)):.1f}"
            yield element("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="grid")
            yield element("text", tick_label(value), x=at, y=bottom + 17, text_anchor="middle")
        middle = (_LEFT + self.width - _RIGHT) / 2
        yield element("text", label, x=middle, y=self.height - 6, text_anchor="middle", class_="name")

    def y_axis(self) -> Iterator[Markup]:
        """Yield ticks and numbers of the vertical axis."""
        for value in ticks(*self.y_limits, _Y_TICKS):
            at = f"{float(self.y(value)):.1f}"
            yield element("line", x1=_LEFT, x2=self.width - _RIGHT, y1=at, y2=at, class_="grid")
            yield element("text", tick_label(value), x=_LEFT - 8, y=at, dy="0.32em", text_anchor="end")


def limits(arrays: Iterable[Array], room: float = 0.0) -> tuple[float, float]:
    """Return the lowest and highest value, with ``room`` (a share of their distance) around; apart where equal."""
    values = np.concatenate([np.ravel(each) for each in arrays])
    low, high = float(values.min()), float(values.max())
    slack = high * room - low * room if high > low else max(0.5, abs(high) * _BESIDE_ONE_VALUE)
    return low - slack, high + slack


def _placed(values: Array | float, limits: tuple[float, float], ends: tuple[float, float]) -> Array:
    low, high = limits
    share = (np.asarray(values) / 2 - low / 2) / (high / 2 - low / 2)  # halves: the difference of all floats is none
    return np.asarray(ends[0] + share * (ends[1] - ends[0]))
