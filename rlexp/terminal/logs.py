"""What ``rlexp logs`` prints: tables, CSV or JSON lines to stdout; problems with files to stderr."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlexp.errors import UsageError
from rlexp.results.event_files import AtStep, Follower, RunContents, Series, TagGlobs, find_runs, read_run
from rlexp.terminal.log_cells import printable
from rlexp.terminal.log_lines import CsvPrinter, Everything, JsonPrinter
from rlexp.terminal.log_printer import LogPrinter
from rlexp.terminal.log_tables import PointTablePrinter, TablePrinter
from rlexp.terminal.paint import YELLOW, painted

_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""Nobody reads faster, and a look costs little more than finding the files."""


@dataclass(frozen=True)
class LogOptions:
    """What to show of the event files, and how."""

    tags: Sequence[str]
    """Shell patterns; none for all tags."""
    at: int | None
    """Show only the point with the last step up to this one."""
    as_csv: bool
    as_json: bool
    follow: bool
    """Go on with what is written, until somebody interrupts."""


def print_logs(paths: Sequence[Path], options: LogOptions) -> None:
    """Print what the event files at and below ``paths`` say; raises UsageError where there are none."""
    if options.as_csv and options.as_json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    if options.at is not None and options.follow:
        raise UsageError("--at and --follow cannot be combined", "use one of them: --at prints one point per tag")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a tag may have letters that the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    runs, globs, printer = find_runs(paths), TagGlobs(options.tags), _printer(options)
    files, tags = [], set[str]()
    for run in runs:
        contents = read_run(run, printer.keep, globs.match)
        printer.print_run(contents)
        _print_notices(contents, printer.shows_others)
        files += contents.files if options.follow else []  # each remembers what it has met
        tags |= contents.tags
    if options.follow:
        _follow(Follower(paths, files), globs, printer)
    globs.refuse_unmatched(tags)


def _printer(options: LogOptions) -> LogPrinter[Any]:
    at = options.at
    if options.as_csv:
        return CsvPrinter(Series if at is None else partial(AtStep, at))
    if options.as_json:
        return JsonPrinter(Everything if at is None else partial(AtStep, at))
    return TablePrinter() if at is None else PointTablePrinter(at)


def _follow(follower: Follower, globs: TagGlobs, printer: LogPrinter[Any]) -> None:
    """Print what is written, until somebody interrupts."""
    _notice("waiting for new points; Ctrl-C ends")
    while True:
        for run, batch in follower.poll():
            for tag, points in batch.points.items():
                if globs.match(tag):
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
