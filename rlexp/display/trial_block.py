"""One trial in the live picture: a title and a line for each fact of its newest row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from rlexp.display.progress_text import goal_text, open_ends, time_left
from rlexp.display.trial_view import TrialView
from rlexp.number_format import (
    MISSING,
    bar,
    count,
    decimal,
    duration,
    exact,
    is_known,
    levels,
    middle_cut,
    one_line,
    percent,
    score,
    short,
    sparkline,
)

MINIMUM_NAME: Final = 16
_LABEL_WIDTH: Final = 11
_INDENT: Final = _LABEL_WIDTH + 2
_GAP: Final = "  "
_WIDEST_BAR: Final = 20
_NARROWEST_BAR: Final = 5
_SPARKLINE_WIDTH: Final = 24
_SHARDS_SHOWN: Final = 8


def trial_block(view: TrialView, width: int, now_s: float) -> list[Text]:
    """Return the lines of a trial; at 80 columns and more, no fact is cut."""
    if not view.row:
        return [_title(view, width, view.phase or "starting")]
    iteration = f"iteration {count(view.row['training_iteration'])}  {duration(view.row['time_total_s'])}"
    room = width - _INDENT
    facts: list[tuple[str, Text]] = [
        ("progress", _progress(view, room, now_s)),
        ("reward", _reward(view)),
        *((label, Text(_fitting(fact(view), room))) for label, fact in _FACTS.items()),
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
    parts = [
        *beside,
        f"{percent(progress.share)} of {goal_text(progress)}",
        time_left(progress.seconds_left, bool(view.undecided)),
    ]
    text = _GAP.join(filter(None, parts))
    bar_width = min(room - len(text) - len(_GAP), _WIDEST_BAR)
    if bar_width < _NARROWEST_BAR:
        return Text(text)
    return Text.assemble((bar(progress.share, bar_width), "green"), _GAP, text)


def _reward(view: TrialView) -> Text:
    goal = view.trial.experiment.stop.get("episode_reward_mean")
    of_goal = "" if goal is None else f" of {exact(goal)}"
    reward = view.row.get("episode_reward_mean")
    if not is_known(reward):
        return Text("no episode has ended yet")
    line = sparkline(view.rewards, _SPARKLINE_WIDTH)
    return Text.assemble((score(reward), "bold"), f"{of_goal}  best {score(view.best_reward)}{_GAP}", (line, "green"))


def _speed(view: TrialView) -> Sequence[str]:
    row = view.row
    return [
        f"sampled {count(row.get('info/sample_throughput'))}/s",
        f"trained {count(row.get('info/train_throughput'))}/s",
        f"{decimal(row.get('info/trained_per_sampled'), 2)} trained per sampled",
    ]


def _data(view: TrialView) -> Sequence[str]:
    row = view.row
    shards = row.get("info/replay_fill_per_shard") or []
    queue = f"{count(row.get('info/learner_queue_size'))}/{count(row.get('info/learner_queue_capacity'))}"
    return [
        f"replay {percent(row.get('info/replay_fill'))} full {levels(shards[:_SHARDS_SHOWN])}".rstrip(),
        f"learner queue {queue}",
        f"weight age {count(row.get('info/weight_age'))}",
    ]


def _exploration(view: TrialView) -> Sequence[str]:
    low, high = (short(view.row.get(f"info/{end}_exploration")) for end in ("min", "max"))
    return [f"ε {low}" if low == high else f"ε {low} to {high}"]


_FACTS: Final[dict[str, Callable[[TrialView], Sequence[str]]]] = {
    "speed": _speed,
    "data": _data,
    "exploring": _exploration,
}


def _bottleneck(view: TrialView, room: int) -> Text:
    """Return the slowest part and how the others spend their time; what does not fit is left out, not cut."""
    learner, workers = (percent(view.row.get(f"info/{who}_wait_share")) for who in ("learner", "worker"))
    spent = [
        f", {verb} {percent(view.row.get(f'info/worker_time_share/{part}'))}"
        for part, verb in (("acting", "act"), ("stepping", "step"), ("folding", "fold"))
    ]
    word = slowest(view)
    waits = f"learner waits {learner}{_GAP}workers wait {workers}"
    for shown in range(len(spent), -1, -1):
        text = f"{_GAP}{waits}{''.join(spent[:shown])}"
        if len(word) + len(text) <= room:
            break
    return Text.assemble((word, "bold yellow"), text)


def _fitting(parts: Sequence[str], room: int) -> str:
    """Return the parts in one line, without the last ones where there is no room for them."""
    kept = list(parts)
    while len(kept) > 1 and len(_GAP.join(kept)) > room:
        kept.pop()
    return _GAP.join(kept)
