"""The output of ``rlexp compare``: curves, scores with intervals, the importance of a sweep's keys."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rlexp.compare.comparison import ComparedGroup, ComparedTrial, Comparison
from rlexp.compare.curve import unit_of
from rlexp.compare.importance import METHOD, Importance, KeyImportance
from rlexp.compare.report import write_picture, write_report
from rlexp.compare.scoring import UnscoredGroup
from rlexp.compare.sweep import SweepResults
from rlexp.errors import Notice
from rlexp.files import plain, to_json
from rlexp.metrics import Estimate
from rlexp.terminal.lines import BOLD, aligned, painted, print_notice_list, tolerate_unknown_letters
from rlexp.terminal.plot import PlotLine, colour_of, plot
from rlexp.text import (
    MISSING,
    MOST_LINES,
    bar,
    count,
    decimal,
    distinct_cuts,
    duration,
    exact,
    first_of,
    middle_cut,
    one_line,
    score,
    value_words,
)

_MOST_LINES: Final = 6
"""More curves than these cannot be distinguished in a terminal."""
_MOST_INTERVALS: Final = 3
_SMALLEST_PLOT: Final = 10
_LEAST_COLUMNS: Final = 20
_LARGEST_PLOT: Final = 20
_SHORTEST_NAME: Final = 8
_MOST_SETTINGS: Final = 12
_FIRST_SETTINGS: Final = ("run", "env", "stop", "config.env", "config.horizon")
"""Settings that make scores incomparable are listed before the others."""
_OF_ENVS: Final = ("env", "config.env", "config.horizon")
_NO_PROBABILITY: Final = (
    "P(better than A) is - if it cannot be estimated: both groups need 2 seeds or more in an env that both play."
)
_SCORES: Final = ("seeds", "mean", "IQM [95 % interval]", "P(better than A)")
_EARLY: Final = ("value where it ended", "A there", "status")
_GOAL: Final = ("median env steps", "median time")


def print_comparison(comparison: Comparison, as_json: bool) -> None:
    """Print a comparison to stdout, a plot and tables or one JSON object, and its notices to stderr."""
    if as_json:
        print(to_json(comparison_as_json(comparison)))
        return
    notices = [Notice(one_line(notice.where), one_line(notice.message)) for notice in comparison.notices]
    print_notice_list(notices, "; --json prints all")
    tolerate_unknown_letters(sys.stdout)
    columns, lines = shutil.get_terminal_size()
    columns = max(columns, _LEAST_COLUMNS)
    tables = list(_tables(comparison, columns))
    height = min(max(lines - len(tables) - 3, _SMALLEST_PLOT), _LARGEST_PLOT)
    for line in (*_curves(comparison, columns - 1, height), "", *tables):
        print(line)


def export_comparison(comparison: Comparison, html: Path | None, png: Path | None) -> None:
    """Write the requested files and say so on stderr; raises UsageError if one cannot be written."""
    if png is not None:
        write_picture(comparison, png)
        print(f"wrote {png}", file=sys.stderr)
    if html is not None:
        write_report(comparison, html, datetime.now())
        print(f"wrote {html}", file=sys.stderr)


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the output of ``--json``; unknown values are None."""
    return {
        "metric": comparison.metric,
        "by": comparison.axis.value,
        "goal": comparison.goal,
        "final_window": [comparison.window.start, comparison.window.end] if comparison.window else None,
        "scoring": comparison.scoring,
        "groups": [_group_as_json(group) for group in comparison.groups],
        "ended_early": [_unscored_as_json(each) for each in comparison.ended_early],
        "differences": {
            name: {group.name: group.settings.get(name) for group in comparison.groups}
            for name in comparison.differences
        },
        "importance": importance_as_json(comparison.importance) if comparison.importance else None,
        "notices": [vars(notice) for notice in comparison.notices],
    }


def _group_as_json(group: ComparedGroup) -> dict[str, Any]:
    band = group.band
    return {
        "name": group.name,
        "mark": group.mark,
        "seeds": len(group.trials),
        "mean": group.mean,
        "iqm": group.iqm.value,
        "iqm_interval_95": group.iqm.interval,
        "goal": vars(group.goal) if group.goal else None,
        "improvement_probability": group.improvement.value if group.improvement else None,
        "improvement_interval_95": group.improvement.interval if group.improvement else None,
        "trials": [_trial_as_json(trial) for trial in group.trials],
        "curve": plain({"x": band.x, "iqm": band.middle, "low": band.low, "high": band.high}),
    }


def _unscored_as_json(each: UnscoredGroup) -> dict[str, Any]:
    return {
        "name": each.name,
        "status": each.status,
        "error": each.error,
        "at": each.at,
        "of": each.of,
        "unit": each.unit,
        "value": each.value,
        "first_value": each.first_value,
        "trials": [str(trial.path) for trial in each.trials],
    }


def _trial_as_json(trial: ComparedTrial) -> dict[str, Any]:
    reached = trial.reached
    return {
        "path": str(trial.folder.path),
        "env": trial.folder.env,
        "seed": trial.folder.seed,
        "score": trial.score,
        "rows": len(trial.curve.values),
        "damaged_lines": trial.curve.damaged_lines,
        "steps_to_goal": reached.steps if reached else None,
        "seconds_to_goal": reached.seconds if reached else None,
    }


def _curves(comparison: Comparison, width: int, height: int) -> Iterator[str]:
    groups = _shown(comparison.groups, comparison.lower_is_better)
    unit = unit_of(comparison.axis, max(float(group.band.x[-1]) for group in groups))
    with_edges = len(groups) <= _MOST_INTERVALS and any(len(group.trials) > 1 for group in groups)
    lines = []
    for group in groups:
        band, edges = group.band, with_edges and len(group.trials) > 1
        low, high = (band.low, band.high) if edges else (None, None)
        lines.append(PlotLine(group.mark, _colour(comparison, group), band.x / unit.size, band.middle, low, high))
    what = "IQM over seeds" + (", dots: 95 % interval" if with_edges else "")
    left_out = (
        f"; shown are the first group and the {len(groups) - 1} best others"
        if len(groups) < len(comparison.groups)
        else ""
    )
    for line in textwrap.wrap(one_line(f"{comparison.metric}: {what}{left_out}"), width):
        yield painted(line, BOLD, sys.stdout)
    yield from plot(lines, width, height, unit.label, sys.stdout)


def _shown(groups: Sequence[ComparedGroup], lower_is_better: bool) -> list[ComparedGroup]:
    """Return the plotted groups: all, or the first, with which all are compared, and the best others."""
    best = sorted(groups[1:], key=lambda group: group.iqm.value, reverse=not lower_is_better)[: _MOST_LINES - 1]
    return [group for group in groups if group is groups[0] or group in best]


def _tables(comparison: Comparison, columns: int) -> Iterator[str]:
    yield from _table(
        _SCORES, [_score_cells(group, comparison.digits) for group in comparison.groups], comparison, columns
    )
    if any(group.improvement is None for group in comparison.groups[1:]):
        yield from textwrap.wrap(_NO_PROBABILITY, columns - 1)
    if comparison.goal is not None:
        yield ""
        header = (f"reached {exact(comparison.goal)}", *_GOAL)
        yield from _table(header, [_goal_cells(group) for group in comparison.groups], comparison, columns)
    if comparison.ended_early:
        yield ""
        yield from _ended_early(comparison.ended_early, columns)
    if comparison.sweep is None and (names := _unnamed_differences(comparison)):
        yield ""
        yield from _differences(comparison, names, columns)
    yield ""
    yield from textwrap.wrap(" ".join(filter(None, (comparison.scoring, comparison.budget))), columns - 1)
    if comparison.sweep is not None and comparison.importance is not None:
        yield ""
        yield from importance_lines(comparison.sweep, comparison.importance, columns)


def _unnamed_differences(comparison: Comparison) -> list[str]:
    """Return the settings that differ, but those that the names of all groups have: ``lr=0.001``.

    A setting that only some agents have comes last.
    """
    names = [
        name
        for name in comparison.differences
        if not all(f"{name.removeprefix('config.')}=" in group.name for group in comparison.groups)
    ]
    groups = comparison.groups
    in_all = {name for name in names if all(name in group.settings for group in groups)}
    return sorted(names, key=lambda name: (not name.startswith(_FIRST_SETTINGS), name not in in_all, name))


def _differences(comparison: Comparison, names: Sequence[str], columns: int) -> Iterator[str]:
    """Yield the settings that differ, a line each with the value of every group; of many groups the names alone."""
    if any(name.startswith(_OF_ENVS) for name in names):
        yield "the groups differ in their env: their scores may not be comparable"
    left_out = len(names) - _MOST_SETTINGS
    more = [f"… and {left_out} more; --html FILE and --json have all"] if left_out > 0 else []
    groups, names = comparison.groups, names[:_MOST_SETTINGS]
    if len(groups) > _MOST_LINES:
        yield from textwrap.wrap(f"settings that differ: {', '.join(map(one_line, names))}", columns - 1)
        yield from more
        return
    values = [[one_line(group.settings.get(name, MISSING)) for group in groups] for name in names]
    shown = [one_line(name.removeprefix("config.")) for name in names]
    width = max(map(len, ("setting that differs", *shown)))
    room = max((columns - 1 - width) // len(groups) - 2, _SHORTEST_NAME)
    rows = [(name, *(middle_cut(value, room) for value in row)) for name, row in zip(shown, values, strict=True)]
    yield from aligned([("setting that differs", *(group.mark for group in groups)), *rows])
    yield from more


def _ended_early(groups: Sequence[UnscoredGroup], columns: int) -> Iterator[str]:
    """Yield a table of what has no score, a line cut to ``columns`` each, and below it the errors, wrapped there."""
    shown = groups[:MOST_LINES]
    cells = [(each.where, score(each.first_value), each.status_words) for each in shown]
    rows = [_EARLY, *cells]
    figures = [max(len(row[column]) for row in rows) for column in range(2)]
    room = max(columns - sum(figures) - max(len(row[2]) for row in rows) - 8, _SHORTEST_NAME)
    names = distinct_cuts([one_line(each.name) for each in shown], room)
    lines = aligned([("ended early", *_EARLY), *((name, *row) for name, row in zip(names, cells, strict=True))], (1, 2))
    yield from (middle_cut(line, columns - 1) for line in lines)
    if len(groups) > len(shown):
        yield f"… and {len(groups) - len(shown)} more; --json prints all"
    for each, name in zip(shown, names, strict=True):
        if each.error is not None:
            yield from textwrap.wrap(f"{name}: {one_line(each.error)}", columns - 1, subsequent_indent="  ")


def _table(
    header: Sequence[str], cells: Sequence[Sequence[str]], comparison: Comparison, columns: int
) -> Iterator[str]:
    """Yield a table whose first columns are the groups' letters, in their colours, and names, cut to ``columns``.

    Cut names stay different.
    """
    figures = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    room = max(columns - sum(figures) - 2 * len(figures) - 4, _SHORTEST_NAME)
    full = [one_line(group.name) for group in comparison.groups]
    names = distinct_cuts(full, room)
    marks = [group.mark for group in comparison.groups]
    rows = [(mark, name, *row) for mark, name, row in zip(marks, names, cells, strict=True)]
    first, *lines = aligned([("", "group", *header), *rows], range(2, len(header) + 2))
    yield first
    for group, line in zip(comparison.groups, lines, strict=True):
        yield painted(line[0], _colour(comparison, group), sys.stdout) + line[1:]
    if len(set(names)) < len(set(full)):  # there is no room for the part in which they differ
        yield from (f"{mark} is {name}" for mark, name in zip(marks, full, strict=True))


def _colour(comparison: Comparison, group: ComparedGroup) -> str:
    return colour_of(comparison.groups.index(group))


def _score_cells(group: ComparedGroup, digits: int) -> tuple[str, ...]:
    better = "-" if group.improvement is None else _estimate(group.improvement, 2)
    return count(len(group.trials)), decimal(group.mean, digits), _estimate(group.iqm, digits), better


def _estimate(estimate: Estimate, digits: int) -> str:
    if estimate.interval is None:
        return f"{decimal(estimate.value, digits)} [1 seed]"
    low, high = estimate.interval
    return f"{decimal(estimate.value, digits)} [{decimal(low, digits)}, {decimal(high, digits)}]"


def _goal_cells(group: ComparedGroup) -> tuple[str, ...]:
    goal = group.goal
    assert goal is not None
    return f"{goal.seeds} of {len(group.trials)}", count(goal.median_steps), duration(goal.median_seconds)


_BAR: Final = 10
_SHORTEST: Final = 12
"""Fewest letters of a cut key or value."""
_BY_CHANCE: Final = "may be chance"


def importance_lines(results: SweepResults, importance: Importance, columns: int) -> Iterator[str]:
    """Yield the importances as a table, then sentences broken at ``columns``; or why there are none."""
    if importance.problem is not None:
        yield from textwrap.wrap(importance.problem, columns - 1)
        return
    best = results.best.point if results.best else {}
    figures = [_figures(each) for each in importance.keys]
    room = columns - 1 - sum(max(map(len, column)) + 2 for column in zip(*figures, strict=True))
    values = [value_words(best[each.key]) if each.key in best else MISSING for each in importance.keys]
    values = [middle_cut(one_line(value), max(room // 3, _SHORTEST)) for value in values]
    room_of_keys = max(room - max(map(len, values)) - 2, _SHORTEST)
    keys = distinct_cuts([one_line(each.key) for each in importance.keys], room_of_keys)
    rows = [(key, value, *cells) for key, value, cells in zip(keys, values, figures, strict=True)]
    yield painted("importance of the keys, and their best values", BOLD, sys.stdout)
    yield from first_of(list(aligned([("key", "best", "share", "", ""), *rows], (2,))), "; --json prints all")
    for note in importance.notes:
        yield from textwrap.wrap(note, columns - 1)


def importance_as_json(importance: Importance) -> dict[str, Any]:
    """Return the importances for a program."""
    return {
        "method": METHOD,
        "configurations": importance.configurations,
        "best": importance.best,
        "keys": [{"key": each.key, "share": each.share, "chance": each.chance} for each in importance.keys],
        "notes": list(importance.notes),
        "problem": importance.problem,
    }


def _figures(each: KeyImportance) -> tuple[str, str, str]:
    share = f"{decimal(100 * each.share, 0)} %".rjust(len("share"))
    return share, bar(each.share, _BAR), "" if each.is_significant else _BY_CHANCE
