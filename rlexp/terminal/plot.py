"""A line plot in braille dots, two by four to a character, with axes; letters mark the curves, also without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TextIO

import numpy as np

from rlexp.compare.curve import limits, tick_label, ticks
from rlexp.sample_batch import Array
from rlexp.terminal.lines import painted

_DOTS_WIDE: Final = 2
_DOTS_HIGH: Final = 4
_BRAILLE: Final = 0x2800
_BITS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_COLOURS: Final = ("36", "33", "35", "32", "34", "31")
_COLUMNS_PER_TICK: Final = 12
_FEWEST_TICKS: Final = 3
_ROWS_PER_TICK: Final = 2
_MARKS_ON_A_CURVE: Final = 3


@dataclass(frozen=True)
class PlotLine:
    """One curve: ``x`` rises; ``mark`` is its letter, also shown without colour."""

    mark: str
    colour: str
    x: Array
    y: Array
    low: Array | None
    """The edges of its interval, drawn as dots; None to leave them out."""
    high: Array | None


def colour_of(index: int) -> str:
    """Return the terminal colour of the curve number ``index``."""
    return _COLOURS[index % len(_COLOURS)]


def plot(lines: Sequence[PlotLine], width: int, height: int, x_label: str, stream: TextIO) -> Iterator[str]:
    """Yield a plot of ``height`` rows, none wider than ``width``; painted as ``stream`` allows."""
    y_low, y_high = limits(values for line in lines for values in (line.y, line.low, line.high) if values is not None)
    x_low, x_high = limits(line.x for line in lines)
    rows = height - 2
    y_ticks = ticks(y_low, y_high, max(rows // _ROWS_PER_TICK, _FEWEST_TICKS))
    margin = max(len(tick_label(value)) for value in y_ticks)
    canvas = _Canvas(width - margin - 2, rows, (x_low, x_high), (y_low, y_high))
    for index, line in enumerate(lines):
        canvas.draw(index, line)
    for index, line in enumerate(lines):
        canvas.mark(index, line, len(lines))
    labels = {canvas.row(value): tick_label(value) for value in y_ticks}
    for row in range(rows):
        label = labels.get(row, "")
        yield f"{label:>{margin}} {'┤' if label else '│'}{canvas.painted_row(row, lines, stream)}"
    yield from _x_axis(canvas, margin, x_label)


def _x_axis(canvas: _Canvas, margin: int, label: str) -> Iterator[str]:
    values = ticks(*canvas.x_limits, max(canvas.width // _COLUMNS_PER_TICK, _FEWEST_TICKS))
    axis, text = ["─"] * canvas.width, [" "] * (canvas.width - len(label) - 1)
    for value in values:
        column, shown = canvas.column(value), tick_label(value)
        axis[column] = "┬"
        start = max(column - len(shown) // 2, 0)
        if start + len(shown) < len(text):
            text[start : start + len(shown)] = shown
    yield f"{'':{margin}} └{''.join(axis)}"
    yield f"{'':{margin}}  {''.join(text)} {label}"


class _Canvas:
    """Characters of dots; the last curve drawn in a character gives its colour."""

    def __init__(self, width: int, height: int, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
        self.width = width
        self.x_limits = x_limits
        self._y_limits = y_limits
        self._dots = np.zeros((height * _DOTS_HIGH, width * _DOTS_WIDE), bool)
        self._owner = np.full((height, width), -1)
        self._marks: dict[tuple[int, int], str] = {}

    def draw(self, index: int, line: PlotLine) -> None:
        """Draw a curve, joined from one column of dots to the next, and the edges of its interval."""
        columns = np.arange(self._dots.shape[1])
        at = np.interp(columns, [0, len(columns) - 1], self.x_limits)
        inside = (at >= line.x[0]) & (at <= line.x[-1])
        columns, at = columns[inside], at[inside]
        for edge in (line.low, line.high):
            if edge is not None:
                rows = self._dot_rows(np.interp(at, line.x, edge))
                self._set(index, rows[::3], columns[::3])
        rows = self._dot_rows(np.interp(at, line.x, line.y))
        for number, column in enumerate(columns):
            before = rows[max(number - 1, 0)]
            span = np.arange(min(before, rows[number]), max(before, rows[number]) + 1)
            self._set(index, span, np.full(len(span), column))

    def mark(self, index: int, line: PlotLine, count: int) -> None:
        """Write the curve's letter at a few places along it, at different places for each curve."""
        for number in range(_MARKS_ON_A_CURVE):
            share = (number + (index + 1) / (count + 1)) / _MARKS_ON_A_CURVE
            x = line.x[0] + share * (line.x[-1] - line.x[0])
            row, column = self.row(float(np.interp(x, line.x, line.y))), self.column(float(x))
            self._marks[row, column] = line.mark
            self._owner[row, column] = index

    def column(self, x: float) -> int:
        """Return the column of characters at ``x``."""
        return int(np.interp(x, self.x_limits, [0, self._dots.shape[1] - 1])) // _DOTS_WIDE

    def row(self, y: float) -> int:
        """Return the row of characters at ``y``, from the top."""
        return int(self._dot_rows(np.array([y]))[0]) // _DOTS_HIGH

    def painted_row(self, row: int, lines: Sequence[PlotLine], stream: TextIO) -> str:
        """Return a row's characters, each in the colour of its curve."""
        cells = [(int(self._owner[row, column]), self._character(row, column)) for column in range(self.width)]
        runs = [(owner, "".join(text for _, text in run)) for owner, run in groupby(cells, key=lambda cell: cell[0])]
        return "".join(
            painted(text, lines[owner].colour, stream) if owner >= 0 else text for owner, text in runs
        ).rstrip()

    def _character(self, row: int, column: int) -> str:
        if (row, column) in self._marks:
            return self._marks[row, column]
        top, left = row * _DOTS_HIGH, column * _DOTS_WIDE
        bits = int(_BITS[self._dots[top : top + _DOTS_HIGH, left : left + _DOTS_WIDE]].sum())
        return chr(_BRAILLE + bits) if bits else " "

    def _dot_rows(self, y: Array) -> Array:
        bottom = self._dots.shape[0] - 1
        return np.rint(np.interp(y, self._y_limits, [bottom, 0])).astype(int)

    def _set(self, index: int, rows: Array, columns: Array) -> None:
        self._dots[rows, columns] = True
        self._owner[rows // _DOTS_HIGH, columns // _DOTS_WIDE] = index
