"""Plots in braille dots: size, positions of curves, and letters that mark them without colour."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.terminal.plot import Line, plot


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def line(
    mark: str, y: list[float], x: list[float] | None = None, colour: str = "36", edge: float | None = None
) -> Line:
    values = np.array(y)
    low, high = (None, None) if edge is None else (values - edge, values + edge)
    return Line(mark, colour, np.array(x if x is not None else range(len(y)), float), values, low, high)


def drawn(*lines: Line, width: int = 40, height: int = 12) -> list[str]:
    return list(plot(lines, width, height, "env steps", io.StringIO()))


def test_plot_of_a_rising_line_rises() -> None:
    rows = drawn(line("A", [0.0, 100.0]))
    area = rows[:-2]
    first = [min((column for column, cell in enumerate(row[6:]) if cell != " "), default=99) for row in area]
    assert first == sorted(first, reverse=True)
    assert first[-1] == 0


def test_plot_axes_have_round_numbers_and_a_name() -> None:
    rows = drawn(line("A", [0.0, 100.0], [0.0, 20_000.0]))
    assert [row[:5] for row in rows if "┤" in row] == ["100 ┤", " 75 ┤", " 50 ┤", " 25 ┤", "  0 ┤"]
    assert rows[-1].split() == ["0", "10k", "env", "steps"]
    assert rows[-2].count("┬") == 3


def test_plot_draws_a_line_on_the_row_of_its_value() -> None:
    rows = drawn(line("A", [50.0, 50.0]), line("B", [0.0, 100.0]))
    assert sum("A" in row for row in rows) == 1
    [middle] = [number for number, row in enumerate(rows) if "A" in row]
    assert middle in (4, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), min_size=1, max_size=5),
    st.integers(25, 120),
    st.integers(6, 30),
)
def test_plot_fits_and_every_curve_has_its_letter(curves: list[list[float]], width: int, height: int) -> None:
    lines = [line("ABCDE"[number], y, edge=1.0) for number, y in enumerate(curves)]
    rows = drawn(*lines, width=width, height=height)
    assert len(rows) == height
    assert max(map(len, rows)) <= width
    assert lines[-1].mark in "".join(rows[:-2])  # the last one drawn is hidden by none


def test_plot_letters_of_parallel_curves_are_side_by_side() -> None:
    text = "".join(drawn(line("A", [0.0, 1.0]), line("B", [0.0, 1.0]), width=60))
    assert text.count("A") == text.count("B") == 3


def test_plot_draws_interval_edges() -> None:
    plain, edged = (drawn(line("A", [5.0, 5.0], edge=edge), line("B", [0.0, 10.0])) for edge in (None, 4.0))
    count = [sum(0x2800 < ord(cell) <= 0x28FF for row in rows for cell in row) for rows in (plain, edged)]
    assert count[1] > count[0] + 10


@pytest.mark.parametrize("y", [[3.0], [3.0, 3.0], [0.0, 1e-12]])
def test_plot_of_flat_lines_and_single_points(y: list[float]) -> None:
    assert any("A" in row for row in drawn(line("A", y)))


def test_plot_has_colours_on_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line("A", [0.0, 1.0], colour="35")]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[35m" in "".join(plot(lines, 40, 12, "x", Terminal()))
    assert "\x1b" not in "".join(plot(lines, 40, 12, "x", io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(plot(lines, 40, 12, "x", Terminal()))
