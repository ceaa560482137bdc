"""A display's knowledge of one trial: its rows so far, its process's phase, and how near its end it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlexp.config.keys.metrics import GROWING_METRICS, METRICS
from rlexp.config.keys.trial import Trial
from rlexp.runs.record import Status
from rlexp.runs.rows import ITERATION, flatten
from rlexp.text import duration, exact, is_known, percent

_REWARDS_KEPT: Final = 400
_BUDGET: Final = "time_budget_s"
_OVER: Final = frozenset({Status.TERMINATED, Status.PRUNED, Status.STOPPED, Status.ERROR})

_LEAST_GAIN: Final = 0.01
"""Gain below which a grid's time left cannot be estimated."""


@dataclass(frozen=True)
class GoalProgress:
    """The progress to a ``stop`` that can be predicted: a counter's, or the time budget's."""

    metric: str
    goal: float
    share: float
    """0..1."""
    seconds_left: float | None
    """Seconds left at the speed since the first row; None if not known yet."""


class TrialView:
    """Owns the displayed data of one trial; a display makes one per trial and passes it every row."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.status = Status.PENDING
        self.phase: str | None = None
        """The phase of its process until its next row."""
        self.row: dict[str, Any] = {}
        """The newest row, flat."""
        self.best_reward: float | None = None
        self._rewards: deque[tuple[int, float]] = deque(maxlen=_REWARDS_KEPT)
        self._first: dict[str, Any] = {}
        self._began_s: float | None = None

    @property
    def rewards(self) -> list[float]:
        """The mean rewards of its newest rows, the last one last."""
        return [reward for _, reward in self._rewards]

    @property
    def is_over(self) -> bool:
        return self.status in _OVER

    def recall(self, rewards: Sequence[tuple[int, float]]) -> None:
        """Record the iterations and mean rewards of rows that earlier commands recorded."""
        for iteration, reward in rewards:
            self._add_reward(iteration, reward)

    def begin(self, now_s: float) -> None:
        """Record that its process begins at a reading of the monotonic clock, when its time budget starts."""
        self.status = Status.RUNNING
        self._began_s = now_s

    def add(self, row: Mapping[str, Any]) -> None:
        """Record a result row; rows of later steps are removed, as it began again from an earlier one."""
        self.status, self.phase = Status.RUNNING, None
        self.row = flatten(row)
        self._first = self._first or self.row
        reward = self.row.get("episode_reward_mean")
        if is_known(reward):
            self._add_reward(self.row[ITERATION], reward)

    def progress(self, now_s: float) -> GoalProgress | None:
        """Return the progress of the counter whose ``stop`` comes first; None if there is none or no row yet."""
        stop = self.trial.experiment.stop
        known = [self._of_counter(metric, goal) for metric, goal in stop.items() if metric in GROWING_METRICS]
        candidates = [candidate for candidate in [*known, self._of_budget(now_s)] if candidate is not None]
        return min(candidates, key=_when, default=None)

    @property
    def undecided(self) -> dict[str, float]:
        """The ``stop`` values of metrics that may reach them at any moment or never, such as rewards."""
        stop = self.trial.experiment.stop
        return {metric: goal for metric, goal in stop.items() if metric not in GROWING_METRICS}

    def share(self, now_s: float) -> float:
        """Return the share that is done, 0..1."""
        progress = self.progress(now_s)
        return 1.0 if self.is_over else 0.0 if progress is None else progress.share

    def _add_reward(self, iteration: int, reward: float) -> None:
        while self._rewards and self._rewards[-1][0] >= iteration:
            self._rewards.pop()
        self._rewards.append((iteration, reward))
        self.best_reward = reward if self.best_reward is None else max(reward, self.best_reward)

    def _of_counter(self, metric: str, goal: float) -> GoalProgress | None:
        value = self.row.get(metric)
        if not is_known(value):
            return None
        share = min(max(value / goal, 0.0), 1.0) if goal > 0 else 1.0
        return GoalProgress(metric, goal, share, 0.0 if share >= 1 else self._seconds_left(metric, goal - value))

    def _of_budget(self, now_s: float) -> GoalProgress | None:
        budget_s = self.trial.experiment.time_budget_s
        if budget_s is None or self._began_s is None:
            return None
        used_s = min(now_s - self._began_s, budget_s)
        return GoalProgress(_BUDGET, budget_s, used_s / budget_s, budget_s - used_s)

    def _seconds_left(self, metric: str, missing: float) -> float | None:
        gained = self.row[metric] - self._first.get(metric, self.row[metric])
        seconds = self.row["time_total_s"] - self._first["time_total_s"]
        return missing * seconds / gained if gained > 0 and seconds > 0 else None


def _when(progress: GoalProgress) -> tuple[float, float]:
    """Return a key that is lower the sooner the goal is reached."""
    return (float("inf") if progress.seconds_left is None else progress.seconds_left, -progress.share)


def progress_words(progress: GoalProgress, is_bound: bool) -> list[str]:
    """Return ``50 % of 500,000 env steps``, and the time left if known: see ``time_left``."""
    words = (f"{percent(progress.share)} of {goal_text(progress)}", time_left(progress.seconds_left, is_bound))
    return list(filter(None, words))


def reward_goal(view: TrialView) -> str:
    """Return `` of 475`` if a mean reward ends the trial, else an empty text."""
    goal = view.trial.experiment.stop.get("episode_reward_mean")
    return "" if goal is None else f" of {exact(goal)}"


def reward_share(view: TrialView) -> float | None:
    """Return the share of the way from the lowest mean reward to the one that ends the trial; None if none ends it."""
    goal = view.trial.experiment.stop.get("episode_reward_mean")
    if goal is None or not view.rewards:
        return None
    way = goal - min(view.rewards)
    return (view.rewards[-1] - min(view.rewards)) / way if way > 0 else 1.0


def goal_text(progress: GoalProgress) -> str:
    """Return a goal with its unit: ``500,000 env steps``, ``0:10:00 training time``."""
    number = duration(progress.goal) if progress.metric.startswith("time_") else exact(progress.goal)
    metric = METRICS.get(progress.metric)  # none has the time budget's name
    return f"{number} {metric.unit if metric and metric.unit else progress.metric}"


def time_left(seconds_left: float | None, is_bound: bool) -> str:
    """Return ``0:01:20 left``, ``at most`` if a reward may end it before; empty if the time is not known."""
    if seconds_left is None:
        return ""
    return f"{'at most ' if is_bound else ''}{duration(seconds_left)} left"


def open_ends(view: TrialView) -> str:
    """Return when a trial ends whose end cannot be predicted."""
    if not view.undecided:
        return "no stop: Ctrl-C ends it"
    return "ends when " + " or ".join(f"{metric} reaches {exact(goal)}" for metric, goal in view.undecided.items())


@dataclass(frozen=True)
class Overall:
    """The progress of all trials together."""

    share: float
    """0..1."""
    seconds_left: float | None
    """Seconds left at the speed so far; None if not known yet."""
    is_bound: bool
    """Whether it may take less, as a reward may end trials before."""


class OverallProgress:
    """Estimates the time of all trials of a run; owns the start time and the progress at that time."""

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None

    def of(self, views: Sequence[TrialView], now_s: float) -> Overall:
        """Return the progress of all trials, each with equal weight; they take at least as long as the slowest."""
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
