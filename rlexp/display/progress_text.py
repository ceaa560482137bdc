"""How near its end a trial or a grid is, in words that the live and the plain display share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rlexp.display.trial_view import Progress, TrialView
from rlexp.number_format import duration, exact

_UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "timesteps_total": "env steps",
        "training_iteration": "iterations",
        "episodes_total": "episodes",
        "time_total_s": "training time",
        "time_budget_s": "time_budget_s",
    }
)
_LEAST_GAIN: Final = 0.01
"""Below, a grid's time left would say nothing."""


def goal_text(progress: Progress) -> str:
    """Return a goal with its unit: ``500,000 env steps``, ``0:10:00 training time``."""
    number = duration(progress.goal) if progress.metric.startswith("time_") else exact(progress.goal)
    return f"{number} {_UNITS.get(progress.metric, progress.metric)}"


def time_left(seconds_left: float | None, is_bound: bool) -> str:
    """Return ``0:01:20 left``, ``at most`` where a reward may end it before; empty where the time is not known."""
    if seconds_left is None:
        return ""
    return f"{'at most ' if is_bound else ''}{duration(seconds_left)} left"


def open_ends(view: TrialView) -> str:
    """Return when a trial ends whose end cannot be foretold."""
    if not view.undecided:
        return "no stop: Ctrl-C ends it"
    return "ends when " + " or ".join(f"{metric} reaches {exact(goal)}" for metric, goal in view.undecided.items())


@dataclass(frozen=True)
class Overall:
    """How much of all trials together is done."""

    share: float
    """0..1."""
    seconds_left: float | None
    """At the speed so far; None where that is not known yet."""
    is_bound: bool
    """Whether it may take less: a reward may end trials before."""


class OverallProgress:
    """Estimates how long all trials of a run will take; owns when it began to and how much was done then."""

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None

    def of(self, views: Sequence[TrialView], now_s: float) -> Overall:
        """Return the progress of all trials, each counting the same; they take as long as the slowest at least."""
        share = sum(view.share(now_s) for view in views) / len(views)
        if self._start is None and any(view.row for view in views):
            self._start = now_s, share
        seconds_left = self._seconds_left(share, now_s)
        if seconds_left is not None:
            running = (view.progress(now_s) for view in views if not view.is_over)
            slowest = max((progress.seconds_left or 0.0 for progress in running if progress), default=0.0)
            seconds_left = max(seconds_left, slowest)
        return Overall(share, seconds_left, any(view.undecided for view in views))

    def _seconds_left(self, share: float, now_s: float) -> float | None:
        if self._start is None or share - self._start[1] < _LEAST_GAIN:
            return None
        began_s, before = self._start
        return (now_s - began_s) * (1 - share) / (share - before)
