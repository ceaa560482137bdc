"""The picture of the live display: every running trial in full where they fit, else a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from rlexp.display.progress_text import Overall, time_left
from rlexp.display.trial_block import MINIMUM_NAME, slowest, trial_block
from rlexp.display.trial_view import TrialView
from rlexp.number_format import MISSING, bar, count, duration, middle_cut, percent, score, sparkline
from rlexp.runs.run_record import Status

_BAR_WIDTH: Final = 12
_WIDEST_BLOCK: Final = 100
"""Lines that are shorter than the window stay whole when it becomes narrower."""
_TABLE_SPARKLINE_WIDTH: Final = 8
_TABLE_HEADER: Final = ("trial", "env steps", "done", "left", "reward", "", "slowest")
_FIGURES_WIDTH: Final = 55
"""Cells of a table row behind the trial's name."""


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
    lines = [Text(headline, style="bold"), *body, *([] if overall is None else [_together(views, overall)])]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[:height])


def _table(views: Sequence[TrialView], width: int, room: int, now_s: float) -> list[Text]:
    name_width = max(width - _FIGURES_WIDTH, MINIMUM_NAME)
    header = _table_row(_TABLE_HEADER, name_width)
    header.stylize("dim")
    shown = list(views) if len(views) < room else list(views[: max(room - 2, 0)])
    rows = [_table_row(_table_cells(view, now_s), name_width) for view in shown]
    hidden = len(views) - len(shown)
    table = [header, *rows, *([Text(f"… and {hidden} more running")] if hidden else [])]
    # The first one in full, if there is room: always the same trial, so the picture stays calm.
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
    """Return how many trials there are, what they do, and how much of all is done."""
    numbers = Counter(view.status for view in views)
    known = [f"{numbers[status]} {status.lower()}" for status in Status if numbers[status]]
    counts = f"{len(views)} trials: {', '.join(known)}  "
    done = f"  {percent(overall.share)}  {time_left(overall.seconds_left, overall.is_bound)}"
    return Text.assemble((counts, "dim"), (bar(overall.share, _BAR_WIDTH), "green"), (done.rstrip(), "dim"))
