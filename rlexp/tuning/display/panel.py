"""The picture of the live display: every running trial in full where they fit, else a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from rlexp.tuning.display.trial_view import TrialView
from rlexp.tuning.figures import (
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
    short,
    sparkline,
)
from rlexp.tuning.run_record import Status

_LABEL_WIDTH: Final = 11
_BAR_WIDTH: Final = 20
_SPARKLINE_WIDTH: Final = 24
_SHARDS_SHOWN: Final = 16
_TABLE_SPARKLINE_WIDTH: Final = 8
_TABLE_HEADER: Final = ("trial", "env steps", "done", "left", "reward", "", "slowest")
_FIGURES_WIDTH: Final = 54
"""Cells of a table row behind the trial's name."""
_MINIMUM_NAME: Final = 16


def picture(views: Sequence[TrialView], headline: str, width: int, height: int) -> Text:
    """Return at most ``height`` lines of at most ``width`` cells: a headline, the running trials, and the counts."""
    running = [view for view in views if view.status is Status.RUNNING]
    room = height - 2
    blocks = [line for view in running for line in _block(view, width)]
    body = blocks if len(blocks) <= room else _table(running, width, room)
    lines = [Text(headline, style="bold"), *body, *([_counts(views)] if len(views) > 1 else [])]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[:height])


def _block(view: TrialView, width: int) -> list[Text]:
    if not view.row:
        return [_title(view, width, "starting")]
    iteration = f"iteration {count(view.row['training_iteration'])}  {duration(view.row['time_total_s'])}"
    facts: list[tuple[str, Callable[[TrialView], Text]]] = [
        ("progress", _progress),
        ("reward", _reward),
        ("speed", _speed),
        ("data", _data),
        ("exploring", _exploration),
        ("bottleneck", _bottleneck),
    ]
    return [
        _title(view, width, iteration),
        *(Text(f"  {label:{_LABEL_WIDTH}}", "dim").append_text(fact(view)) for label, fact in facts),
    ]


def _title(view: TrialView, width: int, state: str) -> Text:
    room = max(width - len(state) - 2, _MINIMUM_NAME)
    return Text.assemble((middle_cut(view.trial.name, room).ljust(room), "bold cyan"), "  ", state)


def _progress(view: TrialView) -> Text:
    steps = f"{count(view.row['timesteps_total'])} env steps"
    progress = view.progress()
    if progress is None:
        return _plain(steps)
    left = "" if progress.seconds_left is None else f"  {duration(progress.seconds_left)} left"
    goal = f"{percent(progress.share)} of {progress.metric} {progress.goal:,g}"
    if progress.metric == "timesteps_total":
        steps, goal = f"{percent(progress.share)} of {progress.goal:,.0f} env steps", ""
    return Text.assemble((bar(progress.share, _BAR_WIDTH), "green"), "  ", "  ".join(filter(None, [steps, goal])), left)


def _reward(view: TrialView) -> Text:
    goal = view.trial.experiment.stop.get("episode_reward_mean")
    of_goal = f" of {goal:,g}" if goal is not None else ""
    line = sparkline(list(view.rewards), _SPARKLINE_WIDTH)
    reward = view.row.get("episode_reward_mean")
    if not is_known(reward):
        return _plain("no episode has ended yet")
    return Text.assemble((decimal(reward), "bold"), f"{of_goal}  best {decimal(view.best_reward)}  ", (line, "green"))


def _speed(view: TrialView) -> Text:
    row = view.row
    return _plain(
        f"sampled {count(row.get('info/sample_throughput'))}/s  trained {count(row.get('info/train_throughput'))}/s"
        f"  {decimal(row.get('info/trained_per_sampled'), 2)} trained per sampled"
    )


def _data(view: TrialView) -> Text:
    row = view.row
    shards = row.get("info/replay_fill_per_shard") or []
    queue = f"{count(row.get('info/learner_queue_size'))}/{count(row.get('info/learner_queue_capacity'))}"
    return _plain(
        f"replay {percent(row.get('info/replay_fill'))} full {levels(shards[:_SHARDS_SHOWN])}"
        f"  learner queue {queue}  weight age {count(row.get('info/weight_age'))}"
    )


def _exploration(view: TrialView) -> Text:
    low, high = (short(view.row.get(f"info/{end}_exploration")) for end in ("min", "max"))
    return Text(f"ε {low}" if low == high else f"ε {low} to {high}")


def _bottleneck(view: TrialView) -> Text:
    learner, workers = (percent(view.row.get(f"info/{who}_wait_share")) for who in ("learner", "worker"))
    spent = [
        f"{verb} {percent(view.row.get(f'info/worker_time_share/{part}'))}"
        for part, verb in (("acting", "act"), ("stepping", "step"), ("folding", "fold"))
    ]
    waits = f"  learner waits {learner}  workers wait {workers}, {', '.join(spent)}"
    return Text.assemble((_slowest(view), "bold yellow"), waits)


def _slowest(view: TrialView) -> str:
    return one_line(str(view.row.get("info/bottleneck") or MISSING))


def _table(views: Sequence[TrialView], width: int, room: int) -> list[Text]:
    name_width = max(width - _FIGURES_WIDTH, _MINIMUM_NAME)
    header = _table_row(_TABLE_HEADER, name_width)
    header.stylize("dim")
    shown = list(views) if len(views) < room else list(views[: max(room - 2, 0)])
    rows = [_table_row(_table_cells(view), name_width) for view in shown]
    hidden = len(views) - len(shown)
    table = [header, *rows, *([_plain(f"… and {hidden} more running")] if hidden else [])]
    # The first one in full, if there is room: always the same trial, so the picture stays calm.
    block = [Text(), *(line for view in views[:1] for line in _block(view, width))]
    return [*table, *block] if len(table) + len(block) <= room else table


def _table_cells(view: TrialView) -> tuple[str, ...]:
    progress = view.progress()
    return (
        view.trial.name,
        count(view.row.get("timesteps_total")),
        percent(progress.share) if progress else MISSING,
        duration(progress.seconds_left) if progress else MISSING,
        decimal(view.row.get("episode_reward_mean")),
        sparkline(list(view.rewards), _TABLE_SPARKLINE_WIDTH),
        _slowest(view),
    )


def _table_row(cells: tuple[str, ...], name_width: int) -> Text:
    name, steps, done, left, reward, line, bottleneck = cells
    shown = middle_cut(name, name_width).ljust(name_width)
    figures = f" {steps:>11} {done:>5} {left:>8} {reward:>8} "
    return Text.assemble(shown, figures, (line.ljust(_TABLE_SPARKLINE_WIDTH), "green"), f" {bottleneck}")


def _counts(views: Sequence[TrialView]) -> Text:
    numbers = Counter(view.status for view in views)
    known = [f"{numbers[status]} {status.lower()}" for status in Status if numbers[status]]
    return Text(f"{len(views)} trials: {', '.join(known)}", style="dim")


def _plain(text: str) -> Text:
    return Text(text)
