"""What the benchmarks share: their options, turns for all that is compared, the conditions, and one table."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from rlexp.cluster.room.machine import available_cpus

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Work = Callable[[], int]
"""Does a little, and returns how many env steps, or rows, that was."""
Line = Mapping[str, Any]
"""A line of a table, by the keys of its columns; with ``--json`` all of it is printed."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    title: str
    width: int
    shown: str = ""
    """How a value is formatted, such as ``,.0f``."""

    def cell(self, line: Line) -> str:
        """Return what stands in ``line``; a dash for what was not measured."""
        value = line.get(self.key)
        return ("-" if value is None else format(value, "" if isinstance(value, str) else self.shown)).rjust(self.width)


class Table:
    """Prints lines as they come: below a heading, or as one JSON object each."""

    def __init__(self, columns: Sequence[Column], as_json: bool) -> None:
        self._columns = tuple(columns)
        self._as_json = as_json
        if not as_json:
            self._print_row([column.title.rjust(column.width) for column in columns])

    def add(self, line: Line) -> None:
        """Print one line."""
        if self._as_json:
            print(json.dumps(line), flush=True)
        else:
            self._print_row([column.cell(line) for column in self._columns])

    def _print_row(self, cells: Sequence[str]) -> None:
        first, *others = cells
        print("  ".join([first.strip().ljust(self._columns[0].width), *others]).rstrip(), flush=True)


def options(description: str | None, repeats: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes; ``repeats`` is the default of ``--repeats``, None for none."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if repeats is not None:
        about = f"how often each is measured; the median counts ({repeats} unless given)"
        parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser


def in_turns(measures: Mapping[K, Callable[[], T]], repeats: int) -> dict[K, list[T]]:
    """Return what each measured, ``repeats`` times; all take turns, so that a busy machine slows them alike."""
    measured: dict[K, list[T]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            measured[name].append(measure())
    return measured


def per_second(work: Work, seconds: float) -> float:
    """Return how much ``work`` does in a second; it is called for ``seconds``, at least once, and counts for itself."""
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < seconds:
        done += work()
    return done / (time.perf_counter() - start)


def median_of(values: Sequence[float | None]) -> float | None:
    """Return the median, where None, for what was never reached, is more than any number; None for such a median."""
    median = statistics.median([math.inf if value is None else value for value in values])
    return median if math.isfinite(median) else None


def conditions() -> str:
    """Return what figures depend on: the machine, how busy it is, and the versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "ray", "numpy", "gymnasium"))
    machine = f"{available_cpus()} cores of {_processor()}, load {os.getloadavg()[0]:.1f} before"
    return f"{machine}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """Return the processor's name."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
