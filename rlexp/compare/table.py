"""Results: the rows of some runs' trials as one table, for programs and notebooks.

The last part is their HTML for notebooks: a short table and the curves of trials, for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from rlexp.compare.curve import Frame, limits, read_rows, tick_label, ticks
from rlexp.compare.run_listing import RESULT_FILE, TrialFolder, number, trials_at, unread_rows
from rlexp.errors import Notice, UsageError
from rlexp.runs.record import Status
from rlexp.runs.rows import COLUMNS, ITERATION, flatten
from rlexp.sample_batch import Array
from rlexp.text import count, duration, first_of, score

DIRECTORY: Final = "directory"
"""The column with the trial's directory, as names of trials are unique within a run only."""
DEFAULT_METRIC: Final = "episode_reward_mean"
_HTML_COLUMNS: Final = ("trial", "status", "iteration", "env steps", "time", "reward", "best")
_MOST_SHOWN: Final = 8
"""Most trials that are listed."""

Row = Mapping[str, Any]
"""One iteration by flat names: ``info/learner/loss``."""


@dataclass(frozen=True)
class TrialResults:
    """The rows of one trial."""

    name: str
    directory: Path
    status: Status | None
    """Its status; None if the run has no record of it."""
    seed: int | None
    varied: Mapping[str, Any]
    """The keys that its run varied, and their values here."""
    rows: tuple[Row, ...]
    notice: Notice | None = None
    """What of its rows cannot be read; None if all can."""


class Results:
    """A table with one row for each iteration of each trial, in the order of the trials.

    Columns have the names of ``progress.csv``; nested values are under ``outer/inner``. ``results[name]`` is a column,
    iteration gives the rows.
    """

    def __init__(self, trials: Sequence[TrialResults]) -> None:
        self.trials = tuple(trials)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What cannot be read: damaged lines, missing files and folders. Printed results end with it."""
        return tuple(trial.notice for trial in self.trials if trial.notice is not None)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        return tuple(row for trial in self.trials for row in trial.rows)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, the columns of every agent first."""
        found = dict.fromkeys(name for row in self.rows for name in row)
        first = [name for name in (DIRECTORY, *COLUMNS) if name in found]
        return tuple(dict.fromkeys([*first, *found]))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Array:
        """Return a column ``[N]``: numbers as floats, NaN if a row has none; others as objects.

        Raises KeyError, with the name that was probably meant, if no row has it.
        """
        if name not in self.columns:
            close = get_close_matches(name, self.columns, n=1)
            raise KeyError(f"no column {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return _column([row.get(name) for row in self.rows])

    def last(self) -> Results:
        """Return the last row of each trial that has any."""
        return Results([replace(trial, rows=trial.rows[-1:]) for trial in self.trials if trial.rows])

    def best(self, metric: str = DEFAULT_METRIC, mode: Literal["max", "min"] = "max") -> Row:
        """Return the row with the highest value of a metric, or the lowest; the first of several.

        Raises KeyError if no row has the column, UsageError if it has no numbers.
        """
        if mode not in ("max", "min"):
            raise UsageError(f"mode must be max or min, got {mode}")
        self[metric]  # this error says what was meant
        known = [(value, row) for row in self.rows if (value := number(row.get(metric))) is not None]
        if not known:
            raise UsageError(f"no row has a number as {metric}", "episodes must end before there is a mean reward")
        choose = max if mode == "max" else min
        return choose(known, key=lambda each: each[0])[1]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the same columns; raises UsageError if pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            raise UsageError("pandas is not installed", "pip install pandas") from error
        return pandas.DataFrame({name: self[name] for name in self.columns})

    def __repr__(self) -> str:
        head = f"Results: {_plural(len(self.trials), 'trial')}, {_plural(len(self), 'row')}, "
        lines = [head + _plural(len(self.columns), "column"), *map(_line, self.trials[:_MOST_SHOWN])]
        left_out = len(self.trials) - _MOST_SHOWN
        lines += [f"  and {_plural(left_out, 'trial')} more"] if left_out > 0 else []
        return "\n".join([*lines, *self._unread()])

    def _unread(self) -> list[str]:
        return first_of([f"notice: {each.where}  {each.message}" for each in self.notices], " notices in .notices")

    def _repr_html_(self) -> str:
        """Return the last row of each trial and the curves of the first ones, for a notebook."""
        head = f"{_plural(len(self.trials), 'trial')}, {_plural(len(self), 'row')}"
        left_out = len(self.trials) - _MOST_SHOWN
        more = f"<p>and {_plural(left_out, 'trial')} more</p>" if left_out > 0 else ""
        table = html_table(_HTML_COLUMNS, [_cells(trial) for trial in self.trials[:_MOST_SHOWN]])
        curves = [reward_curve(trial.name, trial.rows) for trial in self.trials]
        unread = "".join(f"<p>{escape(line)}</p>" for line in self._unread())
        return f"<p>{head}</p>{table}{more}{unread}{html_curves(curves)}"


def reward_curve(name: str, rows: Sequence[Row]) -> NotebookCurve:
    """Return the mean reward of flat rows over their env steps; NaN if a row has none."""
    pairs = [(number(row.get("timesteps_total")), number(row.get(DEFAULT_METRIC))) for row in rows]
    values = np.array([[np.nan if each is None else each for each in pair] for pair in pairs], np.float64)
    return NotebookCurve(name, *values.reshape(-1, 2).T)


def html_with_curve(facts: Mapping[str, str], trial: Path) -> str:
    """Return facts about something of a trial, such as a policy, and the curve of the trial if it has rows."""
    table = html_table(("", ""), [(name, " ".join(text.split())) for name, text in facts.items()])
    return table + html_curves([reward_curve(trial.name, _rows(trial)[0])])


def read_results(paths: Sequence[Path]) -> Results:
    """Return the results of the runs and trials at ``paths``; raises UsageError if there are none."""
    if not paths:
        raise UsageError("results needs a run or a trial", 'for example rlexp.results("results/cartpole")')
    folders = {folder.path.resolve(): folder for path in paths for folder in trials_at(path)}
    return Results([_trial(folder) for folder in folders.values()])


def _trial(folder: TrialFolder) -> TrialResults:
    rows, damaged_lines = _rows(folder.path)
    return TrialResults(
        name=folder.record.name if folder.record else folder.name,
        directory=folder.path,
        status=folder.record.status if folder.record else None,
        seed=folder.seed,
        varied=folder.varied,
        rows=tuple(rows),
        notice=unread_rows(folder, damaged_lines),
    )


def _rows(directory: Path) -> tuple[Sequence[Row], int]:
    """Return the flat rows of a trial, and how many lines are damaged."""
    try:
        return read_rows(directory, lambda row: {DIRECTORY: str(directory), **flatten(row)})
    except OSError as error:
        raise UsageError(f"{directory / RESULT_FILE} cannot be read: {error.strerror}") from error


def _column(values: Sequence[Any]) -> Array:
    kinds = {type(value) for value in values}
    if kinds <= {int} or kinds == {bool}:
        try:
            return np.array(values)
        except OverflowError:
            pass
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _line(trial: TrialResults) -> str:
    status = trial.status or "no record"
    if not trial.rows:
        return f"  {trial.name}: {status}, no rows"
    last = trial.rows[-1]
    steps, reward = count(last.get("timesteps_total")), score(last.get(DEFAULT_METRIC))
    return f"  {trial.name}: {status}, iteration {last.get(ITERATION)}, {steps} env steps, {DEFAULT_METRIC} {reward}"


def _cells(trial: TrialResults) -> list[str]:
    last: Row = trial.rows[-1] if trial.rows else {}
    known = [number(row.get(DEFAULT_METRIC)) for row in trial.rows]
    best = max((value for value in known if value is not None), default=None)
    counted = [count(last.get(name)) for name in (ITERATION, "timesteps_total")]
    time_s = duration(last.get("time_total_s"))
    return [trial.name, trial.status or "no record", *counted, time_s, score(last.get(DEFAULT_METRIC)), score(best)]


def _plural(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}" + ("" if number_of == 1 else "s")


_COLOURS: Final = ("#3d8fc4", "#d9822b", "#2a9d6f", "#c06aa5", "#a58a1f", "#c8574f")
MOST_CURVES: Final = len(_COLOURS)
"""More curves than these cannot be told apart."""
_WIDTH: Final = 460
_HEIGHT: Final = 180
_LEFT, _RIGHT, _TOP, _BELOW = 48, 12, 8, 30
_MOST_TICKS: Final = 5
_MOST_POINTS: Final = 300
_NAME: Final = "margin-right:1em;white-space:nowrap"
_CELL: Final = "padding:2px 10px;text-align:left;white-space:nowrap"


@dataclass(frozen=True)
class NotebookCurve:
    """One curve: ``x`` rises, and values that are not finite are left out."""

    name: str
    x: Array
    y: Array


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, each of them escaped."""
    head = "".join(f'<th style="{_CELL}">{escape(column)}</th>' for column in columns)
    lines = ("".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_curves(curves: Sequence[NotebookCurve]) -> str:
    """Return curves of ``reward_curve`` as SVG with a legend below; empty if none has two points."""
    drawn = [curve for curve in map(_finite, curves[:MOST_CURVES]) if len(curve.x) > 1]
    if not drawn:
        return ""
    frame = Frame(
        height=_HEIGHT,
        x_limits=limits(curve.x for curve in drawn),
        y_limits=limits(curve.y for curve in drawn),
        width=_WIDTH,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        below=_BELOW,
    )
    coloured = list(zip(drawn, _COLOURS, strict=False))
    lines = "".join(
        f'<polyline points="{frame.points(curve.x, curve.y)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        for curve, colour in coloured
    )
    axes = "".join(_axes(frame))
    label = f'<text x="{_WIDTH - 6}" y="{_HEIGHT - 2}" text-anchor="end" fill="currentColor">env steps</text>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'role="img" aria-label="{DEFAULT_METRIC} over env steps" style="font:11px sans-serif;max-width:100%">'
        f"{axes}{lines}{label}</svg>"
    )
    left_out = len(curves) - MOST_CURVES
    more = f"<span>and {left_out} more</span>" if left_out > 0 else ""
    legend = "".join(
        f'<span style="{_NAME}"><span style="color:{colour}">&#9632;</span> {escape(curve.name)}</span>'
        for curve, colour in coloured
    )
    return f"<div>{svg}</div><div>{DEFAULT_METRIC}: {legend}{more}</div>"


def _finite(curve: NotebookCurve) -> NotebookCurve:
    """Return a curve without gaps, and with so few points that a page stays small."""
    known = np.flatnonzero(np.isfinite(curve.x) & np.isfinite(curve.y))
    if len(known) > _MOST_POINTS:
        known = known[np.linspace(0, len(known) - 1, _MOST_POINTS).astype(int)]
    return NotebookCurve(curve.name, curve.x[known], curve.y[known])


def _axes(frame: Frame) -> Iterator[str]:
    left, right, bottom = frame.left, frame.right, frame.bottom
    for value in ticks(*frame.y_limits, _MOST_TICKS):
        y = float(frame.y(value))
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="currentColor" stroke-opacity="0.15"/>'
        yield _number(left - 6, y + 4, value, "end")
    for value in ticks(*frame.x_limits, _MOST_TICKS):
        yield _number(float(frame.x(value)), bottom + 14, value, "middle")
    yield f'<path d="M{left} {frame.top}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'


def _number(x: float, y: float, value: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{tick_label(value)}</text>'
