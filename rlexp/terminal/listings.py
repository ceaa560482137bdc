"""Listings: the runs that were found, as many facts of each as the terminal is wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlexp.files import to_json
from rlexp.run_results.run_listing import DAMAGED, KILLED, Found
from rlexp.runs.record import Status
from rlexp.terminal.lines import GREEN, RED, YELLOW, aligned, painted, tolerate_unknown_letters
from rlexp.text import MISSING, columns_of, count, middle_cut, one_line, score, size

if TYPE_CHECKING:  # it would load the keys of experiments, which lists do not need
    from rlexp.runs.checkpoints.kept import Superseded

_COLUMNS: Final = ("run", "status", "agent", "env", "best", "last", "steps", "iter", "age", "size")
_BY_NEED: Final = ("run", "status", "best", "steps", "age", "size", "env", "agent", "last", "iter")
"""What a narrow terminal shows first."""
_NUMBERS: Final = frozenset({"best", "last", "steps", "iter", "age", "size"})
_SHORTEST_NAME: Final = 12
_DECENT_NAME: Final = 20
"""No column is added that would leave the names less room than this."""
_LONGEST_ENV: Final = 24
_COLOURS: Final = {Status.RUNNING: GREEN, Status.ERROR: RED, DAMAGED: RED, KILLED: YELLOW}
_AGES: Final = ((365 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_found(found: Sequence[Found], path: Path, as_json: bool) -> None:
    """Print what was found at ``path`` to stdout: a table, or one JSON object; that nothing was, to stderr."""
    if as_json:
        print(to_json({"runs": [_as_json(each) for each in found]}))
    elif not found:
        print(f"no runs in {path}", file=sys.stderr)
    else:
        _print_table(found, path, datetime.now().astimezone())


def print_pruned(pruned: Sequence[Superseded], is_dry: bool, as_json: bool) -> None:
    """Print which checkpoints were removed to stdout, or with ``is_dry`` would be: a line for each run, or JSON."""
    if as_json:
        runs = [
            {"run": str(each.run), "checkpoints": list(map(str, each.checkpoints)), "bytes": each.num_bytes}
            for each in pruned
        ]
        print(to_json({"runs": runs, "removed": not is_dry}))
        return
    for each in pruned:
        number = f"{len(each.checkpoints)} of {each.num_checkpoints} checkpoints"
        verb = "would remove" if is_dry else "removed"
        print(f"{one_line(str(each.run))}: {verb} {number}, {size(each.num_bytes)}")


def print_address(url: str) -> None:
    """Print where TensorBoard shows runs to stdout: a sentence on a terminal, elsewhere the address alone."""
    print(f"TensorBoard runs at {url}; Ctrl-C stops it" if sys.stdout.isatty() else url, flush=True)


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "status": found.status,
        "problem": found.problem,
        "agents": found.agents,
        "envs": found.envs,
        "trials": found.num_trials,
        "best": found.best,
        "last": found.last,
        "steps": found.steps,
        "iterations": found.iterations,
        "started": found.started.isoformat() if found.started else None,
        "size_bytes": found.size_bytes if found.is_whole_size else None,
    }


def _print_table(found: Sequence[Found], path: Path, now: datetime) -> None:
    tolerate_unknown_letters(sys.stdout)
    rows = [_cells(each, path, now) for each in found]
    width = columns_of(sys.stdout)
    columns = list(_COLUMNS) if width is None else _fitting(rows, width)
    names = [row["run"] for row in rows]
    if width is not None:
        room = width - sum(_width(rows, column) + 2 for column in columns[1:])
        names = [middle_cut(name, max(room, _SHORTEST_NAME)) for name in names]
    table = [
        columns,
        *([name, *(row[column] for column in columns[1:])] for name, row in zip(names, rows, strict=True)),
    ]
    numbers = {index for index, column in enumerate(columns) if column in _NUMBERS}
    header, *lines = aligned(table, numbers)
    print(header)
    for each, line in zip(found, lines, strict=True):
        colour = _COLOURS.get(each.status)
        print(line if colour is None else line.replace(each.status, painted(each.status, colour, sys.stdout), 1))
    for each, row in zip(found, rows, strict=True):
        if each.problem is not None:
            print(f"{row['run']}: {one_line(each.problem)}")


def _fitting(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """Return the columns for which there is room, in their order; of a long name a part is enough."""
    taken = min(_width(rows, "run"), _DECENT_NAME)
    chosen = {"run", "status"}
    for column in _BY_NEED[1:]:
        taken += _width(rows, column) + 2
        if taken > width:
            break
        chosen.add(column)
    return [column for column in _COLUMNS if column in chosen]


def _width(rows: Sequence[dict[str, str]], column: str) -> int:
    return max(len(column), *(len(row[column]) for row in rows))


def _cells(found: Found, path: Path, now: datetime) -> dict[str, str]:
    name = found.path.relative_to(path) if found.path != path else Path(found.path.resolve().name)
    trials = f" ({found.num_trials} trials)" if found.num_trials > 1 else ""
    return {
        "run": one_line(f"{name}{trials}"),
        "status": found.status,
        "agent": one_line("+".join(found.agents)) or MISSING,
        "env": middle_cut(one_line("+".join(found.envs)), _LONGEST_ENV) or MISSING,
        "best": score(found.best),
        "last": score(found.last),
        "steps": count(found.steps),
        "iter": count(found.iterations),
        "age": _age(found.started, now),
        "size": ("" if found.is_whole_size else ">") + size(found.size_bytes),
    }


def _age(started: datetime | None, now: datetime) -> str:
    if started is None:
        return MISSING
    seconds = max((now - started).total_seconds(), 0.0)
    span, unit = next(((span, unit) for span, unit in _AGES if seconds >= span), _AGES[-1])
    return f"{int(seconds // span)} {unit}"
