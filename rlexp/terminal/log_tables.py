"""Event files for people: a table per run, as wide as the terminal, with a curve for every tag."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Final, TextIO

from rlexp.compare.event_files.gathering import AtStep, Figures, Summary
from rlexp.compare.event_files.runs import LogRun, RunContents
from rlexp.sample_batch import Array
from rlexp.terminal.lines import BOLD, aligned, painted
from rlexp.text import BLOCKS, CUT, MISSING, duration, heights

_NO_TERMINAL_WIDTH: Final = 200
"""Columns without a terminal, so that tags are cut only if they are extremely long."""
_WIDEST_CURVE: Final = 40
_NARROWEST_CURVE: Final = 8
_NARROWEST_TAG: Final = 16
_GAP: Final = "  "
_MINUTE: Final = 60

_LINES_AROUND: Final = 6
"""Lines of a screen that a table leaves free: its heading, what is left out, the prompt."""
_FEWEST_TAGS: Final = 4
_FIRST_TAGS: Final = ("episode_reward_mean", "timesteps_total", "time_total_s", "training_iteration")
"""The tags that a screen shows first, by the last part of their names."""

_Cell = Callable[[Figures, Callable[[int], str], Callable[[float | None], str]], str]

_COLUMNS: Final[dict[str, _Cell]] = {
    "points": lambda figures, step, value: step(figures.points),
    "steps": lambda figures, step, value: f"{step(figures.first_step)}..{step(figures.last_step)}",
    "last": lambda figures, step, value: value(figures.last),
    "max": lambda figures, step, value: value(figures.max),
    "at step": lambda figures, step, value: MISSING if figures.max_step is None else step(figures.max_step),
    "slope/1k": lambda figures, step, value: slope(figures.slope),
}
_DISPENSABLE: Final = ("points", "slope/1k", "steps", "at step", "max")
"""Parts that are left out, in this order, if the terminal is too narrow."""


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond letters and digits that a stream can show."""

    blocks: str
    """Eight heights, the lowest first."""
    cut: str
    """Stands for text that was cut off."""


_UNICODE: Final = Glyphs(BLOCKS, CUT)
_ASCII: Final = Glyphs("_.,-~+*#", "~")


class TablePrinter:
    """Prints a table per run: points, steps, last and highest value, slope and curve of every tag."""

    shows_others = True

    def __init__(self, most_tags: int | None = None) -> None:
        """``most_tags``: how many tags of a run are shown; None: all of them."""
        self._most_tags = most_tags
        self._runs: set[str] = set()

    def keep(self) -> Summary:
        return Summary()

    def print_run(self, contents: RunContents[Summary]) -> None:
        _print_heading(contents.run, first=not self._runs)
        self._runs.add(contents.run.name)
        figures = {tag: kept.figures() for tag, kept in sorted(contents.scalars.items())}
        if figures:
            print(_extent(figures.values()))
            shown = chosen_tags(figures, self._most_tags)
            for line in _table(shown, {tag: contents.scalars[tag].curve.means for tag in shown}):
                print(line)
            if len(shown) < len(figures):
                print(f"… and {len(figures) - len(shown)} more tags: --all shows them, --tag 'GLOB' some")
        if self._most_tags is None:
            _print_others(contents)

    def print_news(self, run: LogRun, tag: str, points: Array) -> None:
        """Print a line per point: time, step, value, tag, and the run if there are several."""
        self._runs.add(run.name)
        name = f"{_GAP}{printable(run.name)}" if len(self._runs) > 1 else ""
        for point in points:
            step, value = exact_step(int(point["step"])), shown_value(tag, float(point["value"]))
            clock = _date(point["wall_time"], "%H:%M:%S") or "--:--:--"
            print(f"{clock}{step:>14}{value:>12}{_GAP}{printable(tag)}{name}")


class PointTablePrinter:
    """Prints a line per tag: the point with the last step up to a given one."""

    shows_others = False

    def __init__(self, step: int) -> None:
        self._step = step
        self._runs = 0

    def keep(self) -> AtStep:
        return AtStep(self._step)

    def print_run(self, contents: RunContents[AtStep]) -> None:
        _print_heading(contents.run, first=not self._runs)
        self._runs += 1
        rows = [("tag", "step", "value")]
        for tag, kept in sorted(contents.scalars.items()):
            for point in kept.points():  # none, if the tag begins later
                rows.append((printable(tag), exact_step(int(point["step"])), shown_value(tag, float(point["value"]))))
        for line in aligned(rows):
            print(line)

    def print_news(self, run: LogRun, tag: str, points: Array) -> None:
        """Print nothing, as past points do not change."""


def _print_heading(run: LogRun, first: bool) -> None:
    print(("" if first else "\n") + painted(printable(run.name), BOLD, sys.stdout))


def _extent(figures: Iterable[Figures]) -> str:
    """Return the number of tags and points, and when they were written."""
    figures = list(figures)
    points = sum(tag.points for tag in figures)
    first, last = min(tag.first_wall_time for tag in figures), max(tag.last_wall_time for tag in figures)
    tags = "1 tag" if len(figures) == 1 else f"{len(figures):,} tags"
    count = "1 point" if points == 1 else f"{points:,} points"
    return f"{tags}, {count}{_when(first, last)}"


def _when(first: float, last: float) -> str:
    end = _date(last, "%Y-%m-%d %H:%M:%S")
    return f", written in {timedelta(seconds=round(last - first))} until {end}" if end and _date(first, "%H") else ""


def _date(wall_time: float, form: str) -> str:
    """Return a time in a form of ``strftime``; empty for one that no clock shows."""
    try:
        return f"{datetime.fromtimestamp(wall_time):{form}}"
    except (ValueError, OverflowError, OSError):
        return ""


def _print_others(contents: RunContents[Summary]) -> None:
    for line in aligned([(printable(tag), kind, f"{n:,}") for (tag, kind), n in sorted(contents.others.items())]):
        print(line)


def _table(figures: Mapping[str, Figures], means: Mapping[str, Callable[[int], list[float]]]) -> Iterator[str]:
    """Yield the lines of a table as wide as the terminal."""
    width = shutil.get_terminal_size((_NO_TERMINAL_WIDTH, 24)).columns
    prefix = _common_prefix(list(figures))
    if prefix:
        yield f"tags below {printable(prefix)}"
    tags = ["tag", *(printable(tag.removeprefix(prefix)) for tag in figures)]
    least = min(max(map(len, tags)), _NARROWEST_TAG) + len(_GAP) + _NARROWEST_CURVE
    columns = _columns(figures, width - least)
    tag_width, curve_width = _outer_widths(max(map(len, tags)), width - _width_of(columns))
    glyphs = glyphs_of(sys.stdout)
    curves = ["curve", *(heights(means[tag](curve_width), glyphs.blocks) for tag in figures)]
    if curve_width < len("curve"):
        curves = [""] * len(curves)
    cells = ([cut(tag, tag_width, glyphs) for tag in tags], *columns, curves)
    for line in aligned(list(zip(*cells, strict=True)), range(1, len(columns) + 1)):
        yield line[:width].rstrip()


def _outer_widths(longest_tag: int, room: int) -> tuple[int, int]:
    """Return the widths of tags and curves in the ``room`` that the numbers leave."""
    with_curve = min(longest_tag, room - _NARROWEST_CURVE - len(_GAP))
    tag_width = max(with_curve, min(longest_tag, _NARROWEST_TAG, max(room, _NARROWEST_CURVE)))
    return tag_width, max(min(room - tag_width - len(_GAP), _WIDEST_CURVE), 0)


def _width_of(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + len(_GAP) for column in columns)


def _columns(figures: Mapping[str, Figures], room: int) -> list[list[str]]:
    """Return the columns of numbers, each with its title, that fit into ``room`` characters, gaps included."""
    columns: list[list[str]] = []
    for left_out in range(-1, len(_DISPENSABLE) + 1):
        step = exact_step if left_out < 0 else compact_step
        kept = {title: cell for title, cell in _COLUMNS.items() if title not in _DISPENSABLE[: max(left_out, 0)]}
        columns = [
            [title, *(cell(each, step, partial(shown_value, tag)) for tag, each in figures.items())]
            for title, cell in kept.items()
        ]
        if _width_of(columns) <= room:
            break
    return columns


def _common_prefix(tags: Sequence[str]) -> str:
    """Return the common part of all tags up to a slash; empty if there is only one tag."""
    if len(tags) < 2:
        return ""
    first, last = min(tags), max(tags)  # tags between these two have the common part too
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return first[: first.rfind("/", 0, common) + 1]


def glyphs_of(stream: TextIO) -> Glyphs:
    """Return the characters that ``stream`` can encode."""
    try:
        f"{_UNICODE.blocks}{_UNICODE.cut}".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII
    return _UNICODE


def printable(text: str) -> str:
    """Return ``text`` without characters that could move the cursor or change colours, as files are not trusted."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Return the last ``width`` characters of ``text``, as tags differ in their ends."""
    return text if len(text) <= width else glyphs.cut + text[len(text) - max(width - 1, 0) :]


def exact_step(step: int) -> str:
    """Return 1234567 as ``1,234,567``."""
    return f"{step:,}"


def compact_step(step: int) -> str:
    """Return 1234567 as ``1.23M``; numbers with up to four digits are not changed."""
    return _compact(step, 3)


def number(value: float | None) -> str:
    """Return a value with four significant digits: ``0.01235``, ``123.5``, ``12.35k``."""
    return MISSING if value is None else _compact(value, 4)


def shown_value(tag: str, value: float | None) -> str:
    """Return a value as :func:`number` does; a time as a time: ``2026-11-23 10:14:05``, ``1:02:03``."""
    name = tag.rpartition("/")[2]
    if value is not None and name == "timestamp" and (moment := _date(value, "%Y-%m-%d %H:%M:%S")):
        return moment
    is_duration = name.startswith("time_") or name.endswith("_s")
    return duration(value) if is_duration and value is not None and abs(value) >= _MINUTE else number(value)


def tags_of_a_screen(lines: int, runs: int) -> int:
    """Return how many tags of each of some runs fit a screen of so many lines together."""
    return max(lines // max(runs, 1) - _LINES_AROUND, _FEWEST_TAGS)


def chosen_tags(figures: Mapping[str, Figures], most: int | None) -> Mapping[str, Figures]:
    """Return the tags that say most, in their order: how well and how far, then what changes, then what does not."""
    if most is None or len(figures) <= most:
        return figures

    def rank(tag: str) -> tuple[int, bool, bool]:
        name = tag.rpartition("/")[2]
        first = _FIRST_TAGS.index(name) if name in _FIRST_TAGS else len(_FIRST_TAGS)
        return first, figures[tag].min == figures[tag].max, not name.startswith("episode_")

    chosen = set(sorted(figures, key=rank)[:most])
    return {tag: each for tag, each in figures.items() if tag in chosen}


def slope(value: float | None) -> str:
    """Return a value's growth in 1000 steps, with its sign."""
    return MISSING if value is None else f"{1000 * value:+.3g}"


def _compact(value: float, digits: int) -> str:
    if not 10_000 <= abs(value) < 1e15:
        return f"{value:.4g}"
    power = math.floor(math.log10(abs(value)) / 3)
    return f"{float(f'{value / 1000**power:.{digits}g}'):.{digits + 1}g}{' kMGT'[power]}"
