"""The output of ``rlexp logs``: tables, CSV or JSON lines to stdout; problems with files to stderr."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from rlexp.compare.event_files.gathering import AtStep, Figures, LogGatherer, Series, Summary
from rlexp.compare.event_files.runs import (
    Follower,
    LogRun,
    RunContents,
    find_runs,
    is_wanted,
    read_run,
    refuse_unmatched,
)
from rlexp.errors import UsageError
from rlexp.files import to_json
from rlexp.sample_batch import Array
from rlexp.terminal.lines import YELLOW, painted, visible
from rlexp.terminal.log_tables import PointTablePrinter, TablePrinter, printable, tags_of_a_screen

_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""Seconds between two checks: nobody reads faster, and a check costs little more than finding the files."""

KeptT = TypeVar("KeptT", bound=LogGatherer)
_POINTS_PER_PIECE = 10_000
"""Points that become text at once."""


@dataclass(frozen=True)
class LogOptions:
    """What to show of the event files, and how."""

    tags: Sequence[str]
    """Shell patterns; empty: all tags."""
    at: int | None
    """Show only the point with the last step up to this one."""
    as_csv: bool
    as_json: bool
    follow: bool
    """Also print what is written later, until Ctrl-C."""
    all_tags: bool = False
    """Show more tags than a terminal has lines for."""


def print_logs(paths: Sequence[Path], options: LogOptions) -> None:
    """Print the content of the event files at and below ``paths``; raises UsageError if there are none."""
    if options.as_csv and options.as_json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    if options.at is not None and options.follow:
        raise UsageError("--at and --follow cannot be combined", "use one of them: --at prints one point per tag")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a tag may have letters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    closed: list[OSError] = []
    runs, wanted = find_runs(paths, closed.append), partial(is_wanted, patterns=options.tags)
    if sys.stdout.isatty():  # what is read first is the end of it
        runs.sort(key=_newest)
    printer = _printer(options, len(runs))
    for error in closed:
        _notice(f"{error.filename} is left out: {error.strerror}")
    files, tags = [], set[str]()
    for run in runs:
        contents = read_run(run, printer.keep, wanted)
        printer.print_run(contents)
        _print_notices(contents, printer.shows_others)
        files += contents.files if options.follow else []  # each remembers what it has met
        tags |= contents.tags
    if options.follow:
        _follow(Follower(paths, files), wanted, printer)
    refuse_unmatched(options.tags, tags)


def _newest(run: LogRun) -> float:
    """Return when a run was written to; a file that is gone counts as the oldest."""
    times = [0.0]
    for file in run.files:
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)


def _printer(options: LogOptions, runs: int) -> LogPrinter[Any]:
    at = options.at
    if options.as_csv:
        return CsvPrinter(Series if at is None else partial(AtStep, at))
    if options.as_json:
        return JsonPrinter(Everything if at is None else partial(AtStep, at))
    if at is not None:
        return PointTablePrinter(at)
    fits_anything = options.all_tags or options.tags or not sys.stdout.isatty()
    return TablePrinter(None if fits_anything else tags_of_a_screen(shutil.get_terminal_size().lines, runs))


def _follow(follower: Follower, wanted: Callable[[str], bool], printer: LogPrinter[Any]) -> None:
    """Print new points until Ctrl-C."""
    _notice("waiting for new points; Ctrl-C ends")
    while True:
        for run, batch in follower.poll():
            for tag, points in batch.points.items():
                if wanted(tag):
                    printer.print_news(run, tag, points)
            for _, step in batch.restarts:
                _notice(f"{run.name} resumed from step {step:,}: its later points are replaced")
        for fault in follower.new_faults():
            _notice(fault)
        sys.stdout.flush()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _print_notices(contents: RunContents[Any], others_shown: bool) -> None:
    sys.stdout.flush()  # a notice belongs below its table
    for file in contents.files:
        for fault in [*file.faults(), *filter(None, [file.cut()])]:
            _notice(f"{file.path} {fault}")
    name = contents.run.name
    if not contents.scalars and not contents.others:
        _notice(f"{name} has no {'such tag' if contents.tags else 'values yet'}")
    if contents.taken_back:
        _notice(f"{name}: {contents.taken_back:,} points are left out: it was resumed from an earlier step")
    if contents.goes_back:
        _notice(f"{name}: steps go back {contents.goes_back:,} times; all points are shown")
    if contents.others and not others_shown:
        kinds = ", ".join(sorted({kind for _, kind in contents.others}))
        count = "1 tag is not a scalar" if len(contents.others) == 1 else f"{len(contents.others)} tags are not scalars"
        _notice(f"{name}: {count} and left out ({kinds})")


def _notice(text: str) -> None:
    print(f"{painted('notice:', YELLOW, sys.stderr)} {printable(text)}", file=sys.stderr, flush=True)


class LogPrinter(Protocol[KeptT]):
    """Decides which of a tag's points are kept while they are read, and prints them."""

    shows_others: bool
    """Whether it prints tags that are not scalars."""

    def keep(self) -> KeptT:
        """Return what gathers the points of one tag."""

    def print_run(self, contents: RunContents[KeptT]) -> None:
        """Print the content of a run's files."""

    def print_news(self, run: LogRun, tag: str, points: Array) -> None:
        """Print points ``[N]`` of POINT that were written since the last look."""


class PointKeeper(LogGatherer, Protocol):
    """The points of a tag for CSV: :class:`Series`, or :class:`AtStep`."""

    def points(self) -> Array:
        """Return what was kept, ``[N]`` of SERIES."""


class CsvPrinter:
    """Prints a row per point: ``run,tag,step,wall_time,value``; a run's tags follow one another."""

    shows_others = False

    def __init__(self, keep: Callable[[], PointKeeper]) -> None:
        self.keep = keep
        print("run,tag,step,wall_time,value")

    def print_run(self, contents: RunContents[PointKeeper]) -> None:
        for tag, kept in sorted(contents.scalars.items()):
            self._print(contents.run, tag, kept.points())

    def print_news(self, run: LogRun, tag: str, points: Array) -> None:
        self._print(run, tag, points)

    def _print(self, run: LogRun, tag: str, points: Array) -> None:
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
        self._summary.take(points)
        self._series.take(points)

    def figures(self) -> Figures:
        return self._summary.figures()

    def points(self) -> Array:
        return self._series.points()


class JsonPrinter:
    """Prints an object per tag and line: ``run``, ``tag``, ``kind``, number of ``points``, and these as three lists.

    Figures are included if all points were kept. A tag that is not a scalar has neither figures nor lists. NaN and
    infinities are null, as JSON has none.
    """

    shows_others = True

    def __init__(self, keep: Callable[[], PointKeeper]) -> None:
        self.keep = keep

    def print_run(self, contents: RunContents[PointKeeper]) -> None:
        for tag, kept in sorted(contents.scalars.items()):
            figures = asdict(kept.figures()) if isinstance(kept, Everything) else {}
            self._print(contents.run, tag, kept.points(), figures)
        for (tag, kind), count in sorted(contents.others.items()):
            print(to_json({"run": contents.run.name, "tag": tag, "kind": kind, "points": count}))

    def print_news(self, run: LogRun, tag: str, points: Array) -> None:
        self._print(run, tag, points, {})

    def _print(self, run: LogRun, tag: str, points: Array, figures: dict[str, Any]) -> None:
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
    """Return cells as in a row of CSV, quoted if necessary."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _pieces(points: Array) -> Iterator[Array]:
    for start in range(0, len(points), _POINTS_PER_PIECE):
        yield points[start : start + _POINTS_PER_PIECE]
