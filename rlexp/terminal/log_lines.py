"""Event files for other programs: CSV and JSON lines, with all points and all their digits."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from rlexp.json_file import to_json
from rlexp.results.event_files import Figures, Run, RunContents, Series, Summary
from rlexp.sample_batch import Array
from rlexp.terminal.paint import visible

_POINTS_PER_PIECE = 10_000
"""Points that become text at once."""


class Kept(Protocol):
    """What CSV needs of a tag: :class:`Series`, or :class:`AtStep`."""

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT."""

    def points(self) -> Array:
        """Return what was kept, ``[N]`` of SERIES."""


class CsvPrinter:
    """Prints a row a point: ``run,tag,step,wall_time,value``; a run's tags follow one another."""

    shows_others = False

    def __init__(self, keep: Callable[[], Kept]) -> None:
        self.keep = keep
        print("run,tag,step,wall_time,value")

    def print_run(self, contents: RunContents[Kept]) -> None:
        """Print the points of every tag; what is no scalar has none."""
        for tag, kept in sorted(contents.scalars.items()):
            self._print(contents.run, tag, kept.points())

    def print_news(self, run: Run, tag: str, points: Array) -> None:
        """Print more rows."""
        self._print(run, tag, points)

    def _print(self, run: Run, tag: str, points: Array) -> None:
        start = _csv_cells(visible(run.name), visible(tag))
        for piece in _pieces(points):
            columns = (piece[name].tolist() for name in ("step", "wall_time", "value"))
            rows = (f"{start},{step},{wall!r},{value!r}\n" for step, wall, value in zip(*columns, strict=True))
            sys.stdout.write("".join(rows))


class Everything:
    """Keeps a tag's figures and all its points."""

    def __init__(self) -> None:
        self._summary, self._series = Summary(), Series()

    def take(self, points: Array) -> None:
        """Take points ``[N]`` of POINT."""
        self._summary.take(points)
        self._series.take(points)

    def figures(self) -> Figures:
        """Return the figures of all points."""
        return self._summary.figures()

    def points(self) -> Array:
        """Return all points, ``[N]`` of SERIES."""
        return self._series.points()


class JsonPrinter:
    """Prints an object a line and tag: ``run``, ``tag``, ``kind``, how many ``points``, and the points as three lists.

    The figures are there where all points were kept. A tag that is no scalar has neither figures nor
    lists. NaN and infinities are null, as JSON has none.
    """

    shows_others = True

    def __init__(self, keep: Callable[[], Kept]) -> None:
        self.keep = keep

    def print_run(self, contents: RunContents[Kept]) -> None:
        """Print a line for every tag."""
        for tag, kept in sorted(contents.scalars.items()):
            figures = asdict(kept.figures()) if isinstance(kept, Everything) else {}
            self._print(contents.run, tag, kept.points(), figures)
        for (tag, kind), count in sorted(contents.others.items()):
            print(to_json({"run": contents.run.name, "tag": tag, "kind": kind, "points": count}))

    def print_news(self, run: Run, tag: str, points: Array) -> None:
        """Print a line with new points."""
        self._print(run, tag, points, {})

    def _print(self, run: Run, tag: str, points: Array, figures: dict[str, Any]) -> None:
        head = {"run": run.name, "tag": tag, "kind": "scalar", "points": len(points), **figures}
        sys.stdout.write(to_json(head)[:-1])
        for key, name in (("steps", "step"), ("wall_times", "wall_time"), ("values", "value")):
            sys.stdout.write(f', "{key}": [')
            for index, piece in enumerate(_pieces(points[name])):
                sys.stdout.write(", " * (index > 0) + _json_numbers(piece))
            sys.stdout.write("]")
        sys.stdout.write("}\n")


def _json_numbers(numbers: Array) -> str:
    return (json.dumps(numbers.tolist()) if np.isfinite(numbers).all() else to_json(numbers))[1:-1]


def _csv_cells(*cells: str) -> str:
    """Return cells as they stand in a row of CSV, quoted where they must be."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _pieces(points: Array) -> Iterator[Array]:
    for start in range(0, len(points), _POINTS_PER_PIECE):
        yield points[start : start + _POINTS_PER_PIECE]
