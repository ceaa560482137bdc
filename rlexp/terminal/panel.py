"""The picture of the live display: every running trial in full if they fit, else a table of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rich.text import Text

from rlexp.config.keys.common import FactLine
from rlexp.runs.record import Status
from rlexp.terminal.summary import fitted, status_counts
from rlexp.terminal.trial_view import (
    Overall,
    TrialView,
    open_ends,
    progress_words,
    reward_goal,
    reward_share,
    time_left,
)
from rlexp.text import (
    MISSING,
    bar,
    count,
    decimal,
    duration,
    is_known,
    levels,
    middle_cut,
    one_line,
    percent,
    score,
    short,
    size,
    sparkline,
)

_BAR_WIDTH: Final = 12
_WIDEST_BLOCK: Final = 100
"""Widest block, so that shorter lines stay whole when the window becomes narrower."""
_TABLE_SPARKLINE_WIDTH: Final = 8
_TABLE_HEADER: Final = ("trial", "env steps", "done", "left", "reward", "", "slowest")
_FIGURES_WIDTH: Final = 55
"""Cells of a table row after the trial's name."""

MINIMUM_NAME: Final = 16
_LABEL_WIDTH: Final = 11
_INDENT: Final = _LABEL_WIDTH + 2
_GAP: Final = "  "
_WIDEST_BAR: Final = 20
_NARROWEST_BAR: Final = 5
_SPARKLINE_WIDTH: Final = 24
_SPARKLINE_WIDTH_BESIDE_A_BAR: Final = 16
_SHARES_SHOWN: Final = 8
_METRIC: Final = re.compile(r"{([\w/]+)(?:\.\.([\w/]+))?:(\w+)}")
"""A metric in a ``FactLine``, or the first and the last one of a range, and the format of both."""
_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "count": count,
    "percent": percent,
    "short": short,
    "size": size,
    "ratio": partial(decimal, digits=2),
    "levels": lambda shares: levels((shares or [])[:_SHARES_SHOWN]),
}


def picture(
    views: Sequence[TrialView], headline: str, width: int, height: int, now_s: float, overall: Overall | None = None
) -> Text:
    """Return at most ``height`` lines of at most ``width`` cells: a headline, the running trials, and all together.

    ``now_s`` is a reading of the monotonic clock.
    """
    running = [view for view in views if view.status is Status.RUNNING]
    room = height - 2
    block_width = min(width, _WIDEST_BLOCK)
    blocks = [line for view in running for line in trial_block(view, block_width, now_s)]
    body = blocks if len(blocks) <= room else _table(running, width, room, now_s)
    foot = [] if overall is None else [_together(views, overall)]
    return fitted([Text(headline, style="bold"), *body, *foot], width, height)


def _table(views: Sequence[TrialView], width: int, room: int, now_s: float) -> list[Text]:
    name_width = max(width - _FIGURES_WIDTH, MINIMUM_NAME)
    header = _table_row(_TABLE_HEADER, name_width)
    header.stylize("dim")
    shown = list(views) if len(views) < room else list(views[: max(room - 2, 0)])
    rows = [_table_row(_table_cells(view, now_s), name_width) for view in shown]
    hidden = len(views) - len(shown)
    table = [header, *rows, *([Text(f"… and {hidden} more running")] if hidden else [])]
    # The first one in full, if there is room: always the same trial, so that the picture does not jump.
    block = [Text(), *(line for view in views[:1] for line in trial_block(view, min(width, _WIDEST_BLOCK), now_s))]
    return [*table, *block] if len(table) + len(block) <= room else table


def _table_cells(view: TrialView, now_s: float) -> tuple[str, ...]:
    progress = view.progress(now_s)
    at_most = "≤" if view.undecided and progress and progress.seconds_left is not None else ""
    return (
        view.trial.name,
        count(view.row.get("timesteps_total")),
        percent(progress.share) if progress else MISSING,
        f"{at_most}{duration(progress.seconds_left)}" if progress else MISSING,
        score(view.row.get("episode_reward_mean")),
        sparkline(view.rewards, _TABLE_SPARKLINE_WIDTH),
        slowest(view) if view.row else view.phase or MISSING,
    )


def _table_row(cells: tuple[str, ...], name_width: int) -> Text:
    name, steps, done, left, reward, line, bottleneck = cells
    shown = middle_cut(name, name_width).ljust(name_width)
    figures = f" {steps:>11} {done:>5} {left:>9} {reward:>8} "
    return Text.assemble(shown, figures, (line.ljust(_TABLE_SPARKLINE_WIDTH), "green"), f" {bottleneck}")


def _together(views: Sequence[TrialView], overall: Overall) -> Text:
    """Return the number of trials by status, and how much of all is done."""
    counts = f"{len(views)} trials: {status_counts(view.status for view in views)}  "
    done = f"  {percent(overall.share)}  {time_left(overall.seconds_left, overall.is_bound)}"
    return Text.assemble((counts, "dim"), (bar(overall.share, _BAR_WIDTH), "green"), (done.rstrip(), "dim"))


def trial_block(view: TrialView, width: int, now_s: float) -> list[Text]:
    """Return the lines of a trial; at 80 columns and more, no fact is cut."""
    if not view.row:
        return [_title(view, width, view.phase or "starting")]
    iteration = f"iteration {count(view.row['training_iteration'])}  {duration(view.row['time_total_s'])}"
    room = width - _INDENT
    facts: list[tuple[str, Text]] = [
        ("progress", _progress(view, room, now_s)),
        ("reward", _reward(view, room)),
        *((line.label, Text(_fitting(_facts(line, view.row), room))) for line in _lines(view)),
        ("bottleneck", _bottleneck(view, room)),
    ]
    return [
        _title(view, width, view.phase or iteration),
        *(Text(f"{_GAP}{label:{_LABEL_WIDTH}}", "dim").append_text(fact) for label, fact in facts),
    ]


def slowest(view: TrialView) -> str:
    """Return what the trial waits for most: the bottleneck in a word."""
    return one_line(str(view.row.get("info/bottleneck") or MISSING))


def _title(view: TrialView, width: int, state: str) -> Text:
    room = max(width - len(state) - len(_GAP), MINIMUM_NAME)
    return Text.assemble((middle_cut(view.trial.name, room).ljust(room), "bold cyan"), _GAP, state)


def _progress(view: TrialView, room: int, now_s: float) -> Text:
    steps, progress = f"{count(view.row['timesteps_total'])} env steps", view.progress(now_s)
    if progress is None:
        return Text(f"{steps}, {open_ends(view)}")
    beside = [] if progress.metric == "timesteps_total" else [steps]
    text = Text(_GAP.join([*beside, *progress_words(progress, bool(view.undecided))]))
    return _behind_a_bar(progress.share, text, room)


def _behind_a_bar(share: float, text: Text, room: int) -> Text:
    """Return ``text`` behind a bar that is as wide as the room allows; alone if it does not allow one."""
    bar_width = min(room - len(text) - len(_GAP), _WIDEST_BAR)
    if bar_width < _NARROWEST_BAR:
        return text
    return Text.assemble((bar(share, bar_width), "green"), _GAP, text)


def _reward(view: TrialView, room: int) -> Text:
    reward = view.row.get("episode_reward_mean")
    if not is_known(reward):
        return Text("no episode has ended yet")
    best = f"{reward_goal(view)}  best {score(view.best_reward)}{_GAP}"
    share = reward_share(view)
    width = _SPARKLINE_WIDTH if share is None else _SPARKLINE_WIDTH_BESIDE_A_BAR
    text = Text.assemble((score(reward), "bold"), best, (sparkline(view.rewards, width), "green"))
    return text if share is None else _behind_a_bar(share, text, room)


def _lines(view: TrialView) -> tuple[FactLine, ...]:
    lines = view.trial.experiment.config.DISPLAYED
    return tuple(line for line in lines if line.needs is None or line.needs in view.row)


def _facts(line: FactLine, row: Mapping[str, Any]) -> list[str]:
    """Return the facts of a line with the values of ``row``."""
    return [_METRIC.sub(lambda found: _value(row, *found.groups()), fact).rstrip() for fact in line.facts]


def _value(row: Mapping[str, Any], metric: str, last: str | None, form: str) -> str:
    first, *others = (_FORMATS[form](row.get(name)) for name in (metric, last) if name)
    return " to ".join(dict.fromkeys((first, *others)))


def _bottleneck(view: TrialView, room: int) -> Text:
    """Return the slowest part and how the others spend their time; parts that do not fit are left out, not cut."""
    learner, workers = (percent(view.row.get(f"info/{who}_wait_share")) for who in ("learner", "worker"))
    spent = [
        f", {verb} {percent(view.row.get(f'info/worker_time_share/{part}'))}"
        for part, verb in (("acting", "act"), ("stepping", "step"), ("folding", "rows"))
    ]
    word = slowest(view)
    waits = f"learner waits {learner}{_GAP}workers wait {workers}"
    for shown in range(len(spent), -1, -1):
        text = f"{_GAP}{waits}{''.join(spent[:shown])}"
        if len(word) + len(text) <= room:
            break
    return Text.assemble((word, "bold yellow"), text)


def _fitting(parts: Sequence[str], room: int) -> str:
    """Return the parts in one line, without the last ones if they do not fit."""
    kept = list(parts)
    while len(kept) > 1 and len(_GAP.join(kept)) > room:
        kept.pop()
    return _GAP.join(kept)
